"""``python -m acmo.bench``: what a step of ACMo costs beside torch's own optimizers, and beside what memory allows."""
