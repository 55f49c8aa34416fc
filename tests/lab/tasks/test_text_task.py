"""The text task: where its text is from, how it is cut and encoded, what is predicted, and bits per byte."""

from math import log
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from acmo.lab.errors import LabError
from acmo.lab.runs import run
from acmo.lab.tasks import find_task
from acmo.lab.tasks.models.gpt import GPT, GPTShape
from acmo.lab.tasks.text_source import cut, encode_bpe, encode_characters, find_files, read_text
from tests.support.lab_runs import run_config

TEXT = "".join(f"Zeile {i % 7}: über den Fluss und in die Wälder – {i % 13}.\n" for i in range(400))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "tinyshakespeare"
    folder.mkdir()
    (folder / "input.txt").write_bytes(TEXT.encode())
    return tmp_path


class Even(nn.Module):
    """Gives every token the same probability."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.vocabulary = vocabulary

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.zeros(*tokens.shape, self.vocabulary)


def test_the_text_is_found_as_root_folder_or_file(root: Path):
    folder = root / "tinyshakespeare"
    for data in (root, folder, folder / "input.txt"):
        assert find_files(data) == [folder / "input.txt"]
        assert read_text(find_files(data)[0]) == TEXT


def test_a_folder_of_texts_is_joined_in_order(tmp_path: Path):
    for name in ("b.txt", "a.txt", "c.md"):
        (tmp_path / name).write_text(name)
    assert [path.name for path in find_files(tmp_path)] == ["a.txt", "b.txt"]


def test_a_folder_without_text_and_bytes_without_utf8_are_errors(tmp_path: Path):
    with pytest.raises(LabError, match=r"neither tinyshakespeare.input\.txt nor"):
        find_files(tmp_path)
    (tmp_path / "x.txt").write_bytes(b"abc\xff")
    with pytest.raises(LabError, match=r"x\.txt is not UTF-8: .* at byte 3"):
        find_task("text:char", tmp_path).prepare()


def test_the_parts_are_contiguous_and_90_5_5():
    parts = cut(TEXT)
    assert "".join(parts) == TEXT
    assert [round(len(part) / len(TEXT), 2) for part in parts] == [0.9, 0.05, 0.05]


@pytest.mark.parametrize("encode", [encode_characters, lambda text: encode_bpe(text, 300)])
def test_decoding_returns_the_text_and_bytes_are_counted(encode):
    encoded = encode(TEXT)
    for part, text in zip((encoded.train, encoded.valid, encoded.test), cut(TEXT), strict=True):
        assert encoded.decode(part.tokens.tolist()) == text
        assert part.bytes == len(text.encode())
        assert int(part.tokens.max()) < encoded.vocabulary
    assert encoded.bytes == len(TEXT.encode())


@pytest.mark.parametrize("size", ["char", "bpe"])
def test_bits_per_byte_of_an_even_guess_is_known(root: Path, size: str):
    task = find_task(f"text:{size}", root)
    task.prepare()
    facts = task.facts()
    assert facts["subset"] == "a text of one's own"
    for split, part in (("valid", task._text.valid), ("test", task._text.test)):
        values = task.evaluate(Even(facts["vocabulary"]), split)
        assert values["loss"] == pytest.approx(log(facts["vocabulary"]))
        bits = len(part.tokens) * log(facts["vocabulary"]) / log(2)
        assert values["bits_per_byte"] == pytest.approx(bits / part.bytes)


def test_an_epoch_covers_the_training_text_in_windows(root: Path):
    task = find_task("text:char", root, seed=3)
    context = task.preset.shape.context
    starts = [torch.cat(list(task.batches(epoch))) for epoch in (0, 1)]
    for epoch in starts:
        assert len(set((epoch % context).tolist())) == 1
        assert len(set(epoch.tolist())) == len(epoch)
    assert starts[0].tolist() != starts[1].tolist()
    assert torch.equal(starts[1], torch.cat(list(find_task("text:char", root, seed=3).batches(1))))
    x, y = task.collate(starts[0][:2], 0)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert task._text.decode(x[0].tolist()) == cut(TEXT)[0][int(starts[0][0]) :][:context]


def test_a_short_text_is_an_error(tmp_path: Path):
    (tmp_path / "short.txt").write_text("too short " * 50)
    with pytest.raises(LabError, match="too few for a context of 64"):
        find_task("text:char", tmp_path / "short.txt").prepare()


def test_the_gpt_sees_no_later_token():
    torch.manual_seed(0)
    net = GPT(GPTShape(layers=2, width=16, heads=2, context=8), 11).eval()
    tokens = torch.randint(0, 11, (2, 8))
    changed = tokens.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    one, two = net(tokens), net(changed)
    torch.testing.assert_close(one[:, :5], two[:, :5])
    assert not torch.allclose(one[:, 5], two[:, 5])


@pytest.mark.parametrize(
    ("net", "millions"), [("tiny", 0.41), ("tiny-64", 0.107), ("tiny-256", 1.61), ("small", 10.7), ("gpt2", 124.3)]
)
def test_the_sizes_have_the_parameters_they_promise(net: str, millions: float):
    preset = find_task(f"text:char/{net}").preset
    vocabulary = 50_257 if net == "gpt2" else 65
    with torch.device("meta"):
        model = GPT(preset.shape, vocabulary)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(millions, rel=0.01)


@pytest.mark.parametrize("optimizer", ["acmo", "spectral-acmo"])
def test_a_run_learns_and_less_is_better(root: Path, tmp_path: Path, optimizer: str):
    what = run_config(task="text:char", optimizer=optimizer, data=root, steps=20, evaluate_every=10, phase="final")
    record = run(what, tmp_path / "run")
    assert record.valid["bits_per_byte"] < record.curve[0].score
    assert record.best_valid == record.valid
    assert 0 < record.test["bits_per_byte"] < 5
