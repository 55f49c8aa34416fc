"""Joint byte-pair encoding, by `tokenizers`: over bytes, so that there is no unknown sign and no text that is lost."""

from collections.abc import Iterable, Sequence
from typing import Any

from acmo.lab.errors import LabError, missing_extra
from acmo.lab.tasks.translation.model import EOS, PAD

SPECIAL = ("<pad>", "</s>")
LONGEST = 64  # bytes of a token


def train(lines: Iterable[str], vocabulary: int) -> str:
    """Return a tokenizer of at most ``vocabulary`` tokens, as JSON; fewer if the text has no more to merge.

    The same lines give the same tokenizer.
    """
    tokenizers = _tokenizers()
    if vocabulary < 256 + len(SPECIAL):
        raise LabError(f"a vocabulary needs at least {256 + len(SPECIAL)} tokens, the bytes alone, got {vocabulary}")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    # A space in front, so that a word is the same token wherever it stands.
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=LONGEST,
    )
    tokenizer.train_from_iterator(lines, trainer)
    return str(tokenizer.to_str())


class BPE:
    """A trained tokenizer.

    Args:
      json: what `train` returned.
    """

    def __init__(self, json: str) -> None:
        self._tokenizer = _tokenizers().Tokenizer.from_str(json)
        # Marks that a text itself contains are text.
        self._tokenizer.encode_special_tokens = True

    def __len__(self) -> int:
        return int(self._tokenizer.get_vocab_size())

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each line, with the end mark."""
        encoded = self._tokenizer.encode_batch_fast(list(lines), add_special_tokens=False)
        return [[*line.ids, EOS] for line in encoded]

    def decode(self, tokens: Sequence[Sequence[int]]) -> list[str]:
        """Return lines from tokens; marks are left out."""
        plain = [[t for t in line if t not in (PAD, EOS)] for line in tokens]
        return [str(text).strip() for text in self._tokenizer.decode_batch(plain, skip_special_tokens=False)]


def _tokenizers() -> Any:
    try:
        import tokenizers
        import tokenizers.decoders
        import tokenizers.models
        import tokenizers.normalizers
        import tokenizers.pre_tokenizers
        import tokenizers.trainers
    except ImportError:
        raise missing_extra("tokenizers", "translation") from None
    return tokenizers
