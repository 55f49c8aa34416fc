"""Translation: parallel text, joint BPE, batches by tokens, a Transformer, and BLEU."""
