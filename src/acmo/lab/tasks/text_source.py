"""A text for a language model: found, cut into three parts, and encoded as characters or as byte pairs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from acmo.lab.errors import LabError
from acmo.lab.tasks.downloads import fetch

SHAKESPEARE = Path("tinyshakespeare") / "input.txt"
SHAKESPEARE_BYTES = 1_115_394
_URL = "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
_CHECKSUM = "sha256:86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
_SHARES = (0.90, 0.95)  # where validation and test begin


@dataclass(frozen=True)
class Part:
    """The tokens of one part of a text, and how many bytes of it they are."""

    tokens: Tensor
    bytes: int


@dataclass(frozen=True)
class Encoded:
    """A text as tokens.

    Args:
      train, valid, test: its three parts.
      vocabulary: how many tokens there are.
      start: the token that stands before a text.
      decode: turns tokens into text.
    """

    train: Part
    valid: Part
    test: Part
    vocabulary: int
    start: int
    decode: Callable[[Sequence[int]], str]

    @property
    def bytes(self) -> int:
        """Return how many bytes the whole text has."""
        return self.train.bytes + self.valid.bytes + self.test.bytes


def find_files(data: Path | None) -> list[Path]:
    """Return the files of a text, in order: tiny Shakespeare if none is given.

    Args:
      data: a file; a folder with ``tinyshakespeare/input.txt``; or a folder of ``.txt`` files, which are joined in the
        order of their paths. None: tiny Shakespeare is downloaded.
    """
    if data is None:
        return [fetch(_URL, _CHECKSUM)]
    for path in (data, data / SHAKESPEARE, data / SHAKESPEARE.name):
        if path.is_file():
            return [path]
    files = sorted(data.rglob("*.txt"))
    if not files:
        raise LabError(f"{data} is no text file, and has neither {SHAKESPEARE} nor other .txt files")
    return files


def read_text(path: Path) -> str:
    """Return the text of a UTF-8 file."""
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        raise LabError(f"{path} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise LabError(f"{path} cannot be read: {error.strerror}") from None


def cut(content: str) -> list[str]:
    """Return the three parts of a text: 90, 5 and 5 % of its characters."""
    first, second = (int(share * len(content)) for share in _SHARES)
    return [content[:first], content[first:second], content[second:]]


def encode_characters(content: str) -> Encoded:
    """Return a text as characters; the vocabulary is that of the whole text, as in nanoGPT."""
    characters = sorted(set(content))
    if not characters or len(characters) > 2**15:
        raise LabError(f"the text has {len(characters)} different characters; text:char needs 1 to {2**15}")
    index = {character: i for i, character in enumerate(characters)}
    train, valid, test = (
        Part(torch.tensor([index[c] for c in text], dtype=torch.int16), len(text.encode())) for text in cut(content)
    )
    start = index.get("\n", 0)
    return Encoded(train, valid, test, len(characters), start, lambda ids: "".join([characters[i] for i in ids]))


def encode_bpe(content: str, vocabulary: int) -> Encoded:
    """Return a text as byte pairs, learned from its training part; the end of a line is a token."""
    from acmo.lab.tasks.translation.bpe import BPE, train
    from acmo.lab.tasks.translation.model import EOS

    texts = cut(content)
    tokenizer = BPE(train(texts[0].splitlines(), vocabulary))
    parts = []
    for text in texts:
        ids = [token for line in tokenizer.encode(text.split("\n")) for token in line][:-1]  # no break at the end
        parts.append(Part(torch.tensor(ids, dtype=torch.int32), len(text.encode())))

    def decode(ids: Sequence[int]) -> str:
        lines: list[list[int]] = [[]]
        for token in ids:
            if token == EOS:
                lines.append([])
            else:
                lines[-1].append(token)
        return "\n".join(tokenizer.decode(lines))

    train_part, valid, test = parts
    return Encoded(train_part, valid, test, len(tokenizer), EOS, decode)
