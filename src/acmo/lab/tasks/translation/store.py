"""Training text as tokens on disk: filtered, counted, made once, memory-mapped ever after.

A pair of 4.5 M takes 16 bytes of memory for where its two sentences begin; the tokens, two bytes each, stay on disk,
and the system keeps of them what it has room for. What most memory is needed for, learning the merges, has a bound.
"""

import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from acmo.lab.atomic import explained, locked, sync_folder
from acmo.lab.errors import LabError
from acmo.lab.tasks.data_files import hash_file
from acmo.lab.tasks.translation import bpe
from acmo.lab.tasks.translation.corpus import Text

FORMAT = 2  # to be raised whenever the same input gives other files
_CHUNK = 20_000  # pairs in memory at a time
_BPE_PAIRS = 500_000  # evenly spaced, to learn merges from: what the trainer needs in memory grows with new words


@dataclass(frozen=True)
class Filters:
    """Which pairs to learn from, in tokens without the end mark: what is usual for WMT (Moses' clean-corpus-n)."""

    shortest: int = 1
    longest: int = 250
    ratio: float = 1.5


@dataclass
class Counts:
    """What became of the pairs that were read."""

    read: int = 0
    kept: int = 0
    not_utf8: int = 0
    empty: int = 0
    too_long: int = 0
    uneven: int = 0

    def __str__(self) -> str:
        return (
            f"{self.read:,} pairs read, {self.kept:,} kept; left out: {self.empty:,} with an empty line, "
            f"{self.not_utf8:,} not valid UTF-8, {self.too_long:,} too long, {self.uneven:,} of too uneven lengths"
        )


class Side:
    """One language: where each sentence begins, and the tokens, with end marks, one after another."""

    def __init__(self, folder: Path, name: str) -> None:
        self.starts = np.load(folder / f"{name}.starts.npy")
        # A view without memmap's class: indexing it costs a third.
        self.tokens = np.asarray(np.memmap(folder / f"{name}.tokens", dtype=np.uint16, mode="r"))
        if len(self.tokens) != self.starts[-1]:
            raise ValueError(f"{name} has {len(self.tokens)} tokens, not {self.starts[-1]}")

    def lengths(self) -> np.ndarray[Any, Any]:
        """Return the length of each sentence, its end mark included."""
        lengths: np.ndarray[Any, Any] = np.diff(self.starts).astype(np.uint16)
        return lengths


class Store:
    """Pairs to learn from, and the tokenizer that was learnt from them.

    Args:
      folder: where they are; its name is the hash of all that they were made from.
    """

    def __init__(self, folder: Path) -> None:
        self.hash = folder.name
        try:
            self.counts = Counts(**json.loads((folder / "counts.json").read_bytes()))
            self.bpe = bpe.BPE((folder / "tokenizer.json").read_text(encoding="utf-8"))
            self.source, self.target = Side(folder, "source"), Side(folder, "target")
            if not len(self.source.starts) == len(self.target.starts) == self.counts.kept + 1:
                raise ValueError("its two sides have not as many sentences")
        except LabError:
            raise
        except Exception as error:  # tokenizers has no narrower one for a broken file
            raise LabError(f"{folder} is damaged ({error}); delete it to have it made again") from None

    def __len__(self) -> int:
        return len(self.source.starts) - 1


def prepared(
    texts: Sequence[Text], vocabulary: int, filters: Filters, cache: Path, limit: int | None = None
) -> tuple[Store, bool]:
    """Return the tokens of these texts, from the cache or made now; and whether they were made now.

    Args:
      texts: to learn from, one after another.
      vocabulary: of the joint BPE.
      filters: of the pairs.
      cache: the folder of all that was ever prepared; what is in it goes by the hash of its input.
      limit: take no more pairs than that, evenly spaced.
    """
    if vocabulary > 2**16:
        raise LabError(f"a vocabulary of {vocabulary} is more than 65,536, the most that two bytes can number")
    key = _key(texts, vocabulary, filters, limit)
    folder = cache / key
    if folder.is_dir():
        return Store(folder), False
    with locked(cache / f".{key}.lock"):
        if folder.is_dir():  # another process was at it
            return Store(folder), False
        print(f"cutting {_named(texts)} into tokens; this is done once", file=sys.stderr)
        for left in cache.glob(f".making-{key}-*"):  # no one else is at it: it is of one that was killed
            shutil.rmtree(left, ignore_errors=True)
        part = Path(tempfile.mkdtemp(prefix=f".making-{key}-", dir=cache))
        try:
            with explained(folder):
                _make(texts, vocabulary, filters, limit, part)
                _put(part, folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return Store(folder), True


def _named(texts: Sequence[Text]) -> str:
    return ", ".join(f"{path}" for text in texts for path in (text.source, text.target))


def _put(part: Path, folder: Path) -> None:
    """Rename what was made once it is on the disk, so that the name is there only if all of it is."""
    for path in part.iterdir():
        with path.open("r+b") as file:
            os.fsync(file.fileno())
    try:
        part.rename(folder)
    except OSError:
        if not folder.is_dir():  # else another process, where there are no locks, was quicker
            raise
    sync_folder(folder.parent)


def _key(texts: Sequence[Text], vocabulary: int, filters: Filters, limit: int | None) -> str:
    what: dict[str, Any] = {"format": FORMAT, "vocabulary": vocabulary, "limit": limit, **asdict(filters)}
    what["texts"] = [[hash_file(text.source), hash_file(text.target)] for text in texts]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _make(texts: Sequence[Text], vocabulary: int, filters: Filters, limit: int | None, folder: Path) -> None:
    total = sum(1 for text in texts for _ in text.pairs())  # also the check that both files have as many lines
    size = min(total, limit or total)
    every = max(1, -(-size // _BPE_PAIRS))
    chosen = islice(_chosen(texts, total, limit), 0, None, every)
    # Without what is far too long, as below: one word of a megabyte keeps the trainer busy for hours.
    lines = (line for pair in chosen for line in pair if line and len(line) <= bpe.LONGEST * filters.longest)
    json_text = bpe.train(lines, vocabulary)
    (folder / "tokenizer.json").write_text(json_text, encoding="utf-8")
    counts = _write_tokens(_chosen(texts, total, limit), bpe.BPE(json_text), filters, folder)
    if counts.kept == 0:
        raise LabError(f"nothing of {texts[0].source} and {texts[0].target} is left to learn from: {counts}")
    (folder / "counts.json").write_text(json.dumps(asdict(counts)))


def _chosen(texts: Sequence[Text], total: int, limit: int | None) -> Iterator[tuple[str | None, str | None]]:
    """Return all pairs, or as many as the limit allows, evenly spaced."""
    pairs = (pair for text in texts for pair in text.pairs())
    if limit is None or limit >= total:
        yield from pairs
        return
    for number, pair in enumerate(pairs):
        if number * limit // total != (number - 1) * limit // total:
            yield pair


def _write_tokens(
    pairs: Iterator[tuple[str | None, str | None]], tokenizer: bpe.BPE, filters: Filters, folder: Path
) -> Counts:
    counts = Counts()
    starts: tuple[list[np.ndarray[Any, Any]], ...] = ([np.zeros(1, np.int64)], [np.zeros(1, np.int64)])
    with (folder / "source.tokens").open("wb") as source, (folder / "target.tokens").open("wb") as target:
        while chunk := list(islice(pairs, _CHUNK)):
            kept = list(_kept(chunk, tokenizer, filters, counts))
            for file, begun, lines in zip((source, target), starts, zip(*kept, strict=True), strict=False):
                file.write(np.concatenate([np.asarray(line, np.uint16) for line in lines]).tobytes())
                begun.append(begun[-1][-1] + np.cumsum([len(line) for line in lines], dtype=np.int64))
    for name, begun in zip(("source", "target"), starts, strict=True):
        np.save(folder / f"{name}.starts.npy", np.concatenate(begun))
    return counts


def _kept(
    chunk: Sequence[tuple[str | None, str | None]], tokenizer: bpe.BPE, filters: Filters, counts: Counts
) -> Iterator[tuple[list[int], list[int]]]:
    counts.read += len(chunk)
    counts.not_utf8 += sum(None in pair for pair in chunk)
    valid = [(s, t) for s, t in chunk if s is not None and t is not None]
    full = [(s, t) for s, t in valid if s and t]
    counts.empty += len(valid) - len(full)
    # No token is longer than that, so what is too long is known without tokenizing megabytes of it.
    fits = [pair for pair in full if max(map(len, pair)) <= bpe.LONGEST * filters.longest]
    counts.too_long += len(full) - len(fits)
    for pair in zip(*(tokenizer.encode(side) for side in zip(*fits, strict=True)), strict=True):
        short, long = sorted(len(line) - 1 for line in pair)
        if long > filters.longest:
            counts.too_long += 1
        elif short < filters.shortest:
            counts.empty += 1
        elif long > filters.ratio * short:
            counts.uneven += 1
        else:
            counts.kept += 1
            yield pair
