"""Parallel text: two files of lines, plain or gzipped; found, read side by side, checked."""

import gzip
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import BinaryIO, NamedTuple

from acmo.lab.errors import LabError

LONGEST_LINE = 1 << 16  # bytes; what is longer is no sentence, and is not kept in memory


class Pair(NamedTuple):
    """A sentence and its translation, without spaces around them; None where a line is no text in UTF-8."""

    source: str | None
    target: str | None


@dataclass(frozen=True)
class Text:
    """The two files of a parallel text."""

    source: Path
    target: Path

    def pairs(self) -> Iterator[Pair]:
        """Return the pairs in order; one file with more lines than the other is an error."""
        count = 0
        for source, target in zip_longest(_lines(self.source), _lines(self.target)):
            if source is None or target is None:
                counts = [sum(1 for _ in _lines(path)) for path in (self.source, self.target)]
                raise LabError(
                    f"{self.source} has {counts[0]} lines and {self.target} has {counts[1]}: "
                    "line n of one must be the translation of line n of the other"
                )
            count += 1
            yield Pair(_decoded(source), _decoded(target))
        if count == 0:
            raise LabError(f"{self.source} is empty")


def find(folder: Path, names: Sequence[str], languages: tuple[str, str]) -> list[Text]:
    """Return those texts in a folder that go by these names: ``name.en`` and ``name.de``, or with ``.gz``.

    Args:
      folder: to look into.
      names: without the language; the first that is there counts, unless it is a tuple joined by ``+``.
      languages: the codes that the files end with, source first.
    """
    for code in languages:
        if not re.fullmatch(r"[a-z]{2,3}", code):
            raise LabError(f"{code!r} is no code of a language, such as en or de")
    if not folder.is_dir():
        raise LabError(f"{folder} is no folder")
    for name in names:
        found = [_files(folder, part, languages) for part in name.split("+")]
        if all(found):
            return [text for text in found if text is not None]
    raise LabError(_what_is_missing(folder, names, languages))


def held_out(text: Text) -> list[tuple[str, str]]:
    """Return the pairs of a text for evaluation: nothing of it is skipped, so a bad line is an error."""
    pairs = []
    for number, (source, target) in enumerate(text.pairs(), start=1):
        for line, path in ((source, text.source), (target, text.target)):
            if not line:
                what = "is not valid UTF-8" if line is None else "is empty"
                raise LabError(f"line {number} of {path} {what}; no line of validation or test data is skipped: fix it")
        assert source is not None
        assert target is not None
        pairs.append((source, target))
    return pairs


def _files(folder: Path, name: str, languages: tuple[str, str]) -> Text | None:
    paths = []
    for code in languages:
        both = (folder / f"{name}.{code}", folder / f"{name}.{code}.gz")
        paths.append(next((path for path in both if path.is_file()), None))
    source, target = paths
    return Text(source, target) if source is not None and target is not None else None


def _what_is_missing(folder: Path, names: Sequence[str], languages: tuple[str, str]) -> str:
    """Return the files of the first name; or those of one text, if a part of them is there."""
    missing = [[part for part in name.split("+") if _files(folder, part, languages) is None] for name in names]
    begun = [parts for name, parts in zip(names, missing, strict=True) if len(parts) <= name.count("+")]
    wanted = (begun or missing)[0][0]
    there = {p.name.removesuffix(".gz").rpartition(".") for p in folder.iterdir() if p.is_file()}
    others = sorted({code for name, _, code in there if name == wanted})
    files = " and ".join(f"{wanted}.{code}" for code in languages)
    hint = f"; of {wanted} there is {', '.join(others)} only" if others else ""
    return f"{folder} has no {files} (plain or with .gz){hint}"


def _lines(path: Path) -> Iterator[bytes]:
    """Return the lines of a file, ended by newlines alone: Unicode's other line ends are part of a sentence."""
    try:
        with _opened(path) as file:
            while line := file.readline(LONGEST_LINE):
                whole = line
                while not line.endswith(b"\n") and (line := file.readline(LONGEST_LINE)):
                    pass  # the rest of a line that is far too long
                yield whole
    except (OSError, EOFError, zlib.error) as error:
        raise LabError(f"{path} cannot be read: {error}") from None


def _opened(path: Path) -> BinaryIO:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _decoded(line: bytes) -> str | None:
    if b"\0" in line:  # UTF-16, which for plain letters happens to be UTF-8 as well
        return None
    # What was cut at the longest line may end within a letter; it is too long anyway, so not worth another word.
    try:
        return line.decode("utf-8", errors="ignore" if len(line) == LONGEST_LINE else "strict").strip()
    except UnicodeDecodeError:
        return None
