"""Parallel text: found, read, filtered, counted, cut into tokens, kept; and what is wrong with it, said."""

import itertools
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("tokenizers", reason="the extra translation is not installed")

from acmo.lab.errors import LabError
from acmo.lab.tasks import find_task
from acmo.lab.tasks.translation import bpe
from acmo.lab.tasks.translation.batches import gathered
from acmo.lab.tasks.translation.corpus import Text, find, held_out
from acmo.lab.tasks.translation.model import EOS, PAD
from acmo.lab.tasks.translation.store import Counts, Filters, Store, prepared
from tests.support.lab_translation import corpus, sentences, write

CODES = ("en", "de")


def text_of(folder: Path, pairs: list[tuple[str, str]] | None = None) -> Text:
    write(folder, "train", sentences(50) if pairs is None else pairs)
    return find(folder, ["train"], CODES)[0]


def made(folder: Path, text: Text, **options) -> Store:
    return prepared([text], options.pop("vocabulary", 300), Filters(**options), folder / "cache")[0]


def lines_of(store: Store) -> list[tuple[str, ...]]:
    rows = torch.arange(len(store))
    return list(
        zip(*(store.bpe.decode(gathered(side, rows).tolist()) for side in (store.source, store.target)), strict=True)
    )


def test_plain_and_gzipped_files_give_the_same_pairs(tmp_path):
    for gz in (False, True):
        write(tmp_path / str(gz), "train", sentences(30), gz=gz)
    plain, zipped = (list(find(tmp_path / name, ["train"], CODES)[0].pairs()) for name in ("False", "True"))
    assert plain == zipped == sentences(30)


def test_first_existing_name_is_read_and_plus_joins_files(tmp_path):
    for name in ("b", "c"):
        write(tmp_path, name, sentences(3))
    assert [text.source.name for text in find(tmp_path, ["a", "c", "b"], CODES)] == ["c.en"]
    assert [text.source.name for text in find(tmp_path, ["a+b", "b+c"], CODES)] == ["b.en", "c.en"]


def test_unequal_line_counts_are_an_error_with_both_counts(tmp_path):
    text = text_of(tmp_path)
    with text.target.open("a") as file:
        file.write("Noch eine Zeile.\n")
    with pytest.raises(LabError, match=r"train\.en has 50 lines and .*train\.de has 51"):
        made(tmp_path, text)


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (("en", "fr"), r"has no train\.en and train\.fr .*of train there is de, en only"),
        (("en", "German"), "'German' is no code of a language"),
        (("en", "../x"), "is no code of a language"),
    ],
)
def test_an_unknown_language_is_a_sentence(tmp_path, codes, words):
    text_of(tmp_path)
    with pytest.raises(LabError, match=words):
        find(tmp_path, ["train"], codes)


def test_missing_or_broken_text_files_give_one_sentence(tmp_path):
    with pytest.raises(LabError, match="is no folder"):
        find(tmp_path / "none", ["train"], CODES)
    with pytest.raises(LabError, match=r"has no train\.en and train\.de"):
        find(tmp_path, ["train"], CODES)
    for name in ("europarl-v7.de-en", "commoncrawl.de-en"):
        write(tmp_path / "wmt", name, sentences(3))
    with pytest.raises(LabError, match=r"has no news-commentary-v9\.de-en\.en and news-commentary-v9\.de-en\.de"):
        find_task("wmt14-ende", tmp_path / "wmt").texts("train")
    write(tmp_path, "train", sentences(2000), gz=True)
    path = tmp_path / "train.de.gz"
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(LabError, match=r"train\.de\.gz cannot be read"):
        made(tmp_path, find(tmp_path, ["train"], CODES)[0])


def test_what_cannot_be_learnt_from_is_left_out_and_counted(tmp_path):
    good = sentences(40)
    bad = [
        ("", "Ein Satz."),
        ("A sentence.", "   "),
        ("word " * 10_000, "Wort " * 10_000),  # 10,000 tokens
        ("x" * 3_000_000, "Ein langes Wort."),
        ("One two three four five six seven eight nine ten.", "Eins."),
        ("Line\u2028within one line, and\x0cmore.", "Zeile\u2028in einer Zeile, und\x0cmehr."),
    ]
    text = text_of(tmp_path, good[:20] + bad + good[20:])
    for path, line in ((text.source, b"caf\xe9\n"), (text.target, b"Kaffee\n")):
        path.write_bytes(path.read_bytes() + line)
    store = made(tmp_path, text, longest=60, ratio=1.5)
    assert store.counts == Counts(read=47, kept=41, not_utf8=1, empty=2, too_long=2, uneven=1)
    assert len(store) == 41
    kept = lines_of(store)
    assert kept == [*good[:20], bad[5], *good[20:]]
    assert "1 not valid UTF-8" in str(store.counts)


def test_a_text_in_another_encoding_is_not_learnt_from(tmp_path):
    text = text_of(tmp_path)
    for path in (text.source, text.target):
        path.write_text(path.read_text("utf-8"), "utf-16")
    with pytest.raises(LabError, match=r"nothing of .* is left .* 51 not valid UTF-8"):
        made(tmp_path, text)


def test_the_filters_are_of_tokens_at_their_exact_limits(tmp_path):
    text = text_of(tmp_path)
    lengths = np.stack([side.lengths() - 1 for side in _sides(made(tmp_path, text, longest=250, ratio=100))])
    longest, ratio = int(lengths.max()), float((lengths.max(0) / lengths.min(0)).max())
    assert made(tmp_path, text, longest=longest, ratio=ratio).counts.kept == 50
    assert made(tmp_path, text, longest=longest - 1, ratio=ratio).counts.too_long >= 1
    assert made(tmp_path, text, longest=longest, ratio=ratio - 1e-6).counts.uneven >= 1


def _sides(store: Store):
    return store.source, store.target


def test_nothing_left_to_learn_from_is_an_error(tmp_path):
    with pytest.raises(LabError, match=r"nothing of .* is left .* 2 with an empty line"):
        made(tmp_path, text_of(tmp_path, [("", "x"), ("y", "")]))
    with pytest.raises(LabError, match="is empty"):
        made(tmp_path, _emptied(text_of(tmp_path / "no")))


def _emptied(text: Text) -> Text:
    for path in (text.source, text.target):
        path.write_bytes(b"")
    return text


@pytest.mark.parametrize(("line", "words"), [(b"\n", "line 2 of .*de is empty"), (b"\xff\n", "line 2 .* UTF-8")])
def test_held_out_text_is_whole_or_an_error_with_the_line(tmp_path, line, words):
    text = text_of(tmp_path)
    assert held_out(text) == sentences(50)
    lines = text.target.read_bytes().splitlines(keepends=True)
    text.target.write_bytes(b"".join([lines[0], line, *lines[2:]]))
    with pytest.raises(LabError, match=words):
        held_out(text)


@settings(max_examples=40)
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40), min_size=1, max_size=5))
def test_any_text_comes_back_from_its_tokens(lines):
    import unicodedata

    tokens = TOKENIZER.encode(lines)
    assert all(line[-1] == EOS and PAD not in line and EOS not in line[:-1] for line in tokens)
    assert TOKENIZER.decode(tokens) == [unicodedata.normalize("NFC", line).strip() for line in lines]


TOKENIZER = bpe.BPE(bpe.train([line for pair in sentences(100) for line in pair], 320))


def test_marks_in_a_text_are_text():
    assert TOKENIZER.decode(TOKENIZER.encode(["a </s> b <pad> c"])) == ["a </s> b <pad> c"]
    assert TOKENIZER.encode(["</s>"])[0].count(EOS) == 1


def test_the_vocabulary_is_joint_and_as_large_as_asked(tmp_path):
    assert len(TOKENIZER) == 320
    store = made(tmp_path, text_of(tmp_path), vocabulary=310)
    assert len(store.bpe) == 310
    # Merges were learnt from both languages: a word of either is fewer tokens than letters.
    for word in ("woman", "Straße"):
        assert len(store.bpe.encode([word])[0]) - 1 < len(word)
    with pytest.raises(LabError, match="at least 258"):
        made(tmp_path, text_of(tmp_path), vocabulary=100)
    with pytest.raises(LabError, match="65,536"):
        made(tmp_path, text_of(tmp_path), vocabulary=70_000)


def folders(cache: Path) -> list[Path]:
    return [path for path in cache.iterdir() if path.is_dir()]  # beside them are lock files


def test_tokens_are_made_once_and_go_by_the_hash_of_their_input(tmp_path):
    text, cache = text_of(tmp_path), tmp_path / "cache"
    first, fresh = prepared([text], 300, Filters(), cache)
    again, fresh_again = prepared([text], 300, Filters(), cache)
    assert (fresh, fresh_again) == (True, False)
    assert np.array_equal(first.source.tokens, again.source.tokens)
    assert len(folders(cache)) == 1  # nothing half made
    assert prepared([text], 301, Filters(), cache)[1]
    assert prepared([text], 300, Filters(ratio=2), cache)[1]
    text.target.write_text(text.target.read_text().replace("Hund", "Hand"))
    assert prepared([text], 300, Filters(), cache)[1]


def test_the_same_text_gives_the_same_tokens_on_another_machine(tmp_path):
    text = text_of(tmp_path, sentences(300))
    a, b = (prepared([text], 350, Filters(), tmp_path / name)[0] for name in "ab")
    assert np.array_equal(a.source.tokens, b.source.tokens)
    assert np.array_equal(a.target.tokens, b.target.tokens)


def test_two_processes_at_once_make_them_once(tmp_path):
    text = text_of(tmp_path, sentences(2000))
    context = multiprocessing.get_context("spawn")
    with context.Pool(2, _meet, (context.Barrier(2),)) as pool:
        fresh = pool.starmap(_fresh, [(text, tmp_path / "cache")] * 2, chunksize=1)
    assert sorted(fresh) == [False, True]
    assert len(folders(tmp_path / "cache")) == 1


def _meet(barrier) -> None:
    global together
    together = barrier


def _fresh(text: Text, cache: Path) -> bool:
    together.wait(60)  # both begin now
    return prepared([text], 300, Filters(), cache)[1]


KILLED = """
import os, signal, sys
from pathlib import Path
from acmo.lab.tasks.translation.corpus import Text
from acmo.lab.tasks.translation.store import Filters, prepared

class Deadly(Text):
    passes = 0

    def pairs(self):
        Deadly.passes += 1
        for number, pair in enumerate(super().pairs()):
            if Deadly.passes == 3 and number == 40:  # to be counted, to learn merges from, to be cut into tokens
                os.kill(os.getpid(), signal.SIGKILL)
            yield pair

prepared([Deadly(Path(sys.argv[1]), Path(sys.argv[2]))], 300, Filters(), Path(sys.argv[3]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL, and no lock")
def test_what_a_killed_process_leaves_behind_is_cleared_away(tmp_path):
    text, cache = text_of(tmp_path), tmp_path / "cache"
    command = [sys.executable, "-c", KILLED, str(text.source), str(text.target), str(cache)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == -9
    assert list(cache.glob(".making-*/tokenizer.json"))
    store, fresh = prepared([text], 300, Filters(), cache)
    assert fresh
    assert len(store) == store.counts.kept
    assert len(folders(cache)) == 1


def test_a_limit_takes_pairs_evenly(tmp_path):
    text = text_of(tmp_path, sentences(100))
    store = prepared([text], 300, Filters(ratio=100), tmp_path / "cache", limit=30)[0]
    assert store.counts.read == 30
    places = [sentences(100).index(pair) for pair in lines_of(store)]
    assert all(2 <= b - a <= 4 for a, b in itertools.pairwise(places))


@pytest.mark.parametrize("name", ["tokenizer.json", "counts.json", "source.starts.npy", "target.tokens"])
@pytest.mark.parametrize("kept", [0, 2, -2, None])
def test_a_damaged_store_is_named(tmp_path, name, kept):
    text, cache = text_of(tmp_path), tmp_path / "cache"
    prepared([text], 300, Filters(), cache)
    (folder,) = folders(cache)
    path = folder / name
    if kept is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(LabError, match=r"is damaged .*delete it"):
        prepared([text], 300, Filters(), cache)


def test_two_sides_that_do_not_fit_are_damage(tmp_path):
    text, cache = text_of(tmp_path), tmp_path / "cache"
    prepared([text], 300, Filters(), cache)
    (folder,) = folders(cache)
    for end in ("tokens", "starts.npy"):
        one = folder / f"target.{end}"
        one.write_bytes((folder / f"source.{end}").read_bytes())
    starts = np.load(folder / "target.starts.npy")
    tokens = (folder / "target.tokens").read_bytes()
    np.save(folder / "target.starts.npy", starts[:-1])
    (folder / "target.tokens").write_bytes(tokens[: 2 * int(starts[-2])])
    with pytest.raises(LabError, match="not as many sentences"):
        prepared([text], 300, Filters(), cache)


def test_left_out_pairs_are_reported_at_each_start(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    data = corpus(tmp_path / "data")
    write(data, "train", [*sentences(30), ("", "leer")], gz=True)
    for first in (True, False):
        find_task("multi30k-ende:tiny", data).prepare()
        said = capsys.readouterr().err
        assert ("this is done once" in said) is first
        assert "31 pairs read" in said
        assert "1 with an empty line" in said


def test_missing_data_is_reported_before_training(tmp_path, monkeypatch):
    monkeypatch.setenv("ACMO_DATA", str(tmp_path / "cache"))
    data = corpus(tmp_path / "data")
    (data / "test_2016_flickr.de").write_bytes(b"\xff\n" * 20)
    with pytest.raises(LabError, match=r"line 1 of .*test_2016_flickr\.de is not valid UTF-8"):
        find_task("multi30k-ende:tiny", data).prepare()
    (data / "test_2016_flickr.de").unlink()
    with pytest.raises(LabError, match=r"test_2016_flickr\.de"):
        find_task("multi30k-ende:tiny", data).prepare()
    with pytest.raises(LabError, match="did you mean 'multi30k-ende'"):
        find_task("multi30k-enfr:tiny", data)
