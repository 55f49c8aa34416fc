"""Hugging Face's Trainer: short real trainings, and resuming from its own checkpoints."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from pydoc_data.topics import topics  # the language reference: a text that comes with Python
from typing import Any

from tests.support.paths import DATA

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from torch.utils.data import Dataset

from acmo import ACMo, param_groups

# What is heavy in it (some 5 s) loads when it is first used.
transformers = pytest.importorskip("transformers", reason="transformers is not installed: it comes with acmo[dev-all]")

MULTI30K = DATA / "multi30k" / "train.en.gz"
STEPS = 40
Rows = list[dict[str, torch.Tensor]]


class Table(Dataset):
    def __init__(self, rows: Rows) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return self.rows[i]


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    dropout = {"attention_dropout": 0.1}  # resuming must bring the generators back as well
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=128, max_position_embeddings=32, **size, **dropout)
    )


def tokens(text: bytes) -> Table:
    """One byte a token."""
    rows = torch.tensor([min(byte, 127) for byte in text[: 32 * 1024]]).view(-1, 32)
    return Table([{"input_ids": row, "labels": row} for row in rows])


def training(folder: Path, net: torch.nn.Module, rows: Table, given: dict[str, Any], **options: Any) -> Any:
    return transformers.Trainer(
        net,
        transformers.TrainingArguments(
            str(folder),
            use_cpu=True,
            max_steps=STEPS,
            per_device_train_batch_size=32,
            save_steps=STEPS // 2,
            logging_steps=5,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=False,
            **options,
        ),
        train_dataset=rows,
        **given,
    )


def losses(trainer: Any) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def state(trainer: Any) -> list[torch.Tensor]:
    """θ and all that ACMo keeps of it, whatever the trainer has wrapped it in."""
    params = list(trainer.model.parameters())
    return [*params, *(x for p in params for x in trainer.optimizer.state[p].values())]


def assert_resumed_equals_going_on(make: Any, folder: Path) -> Any:
    through = make(folder / "through")
    through.train()
    resumed = make(folder / "resumed")
    resumed.train(resume_from_checkpoint=str(folder / "through" / f"checkpoint-{STEPS // 2}"))
    assert resumed.state.global_step == through.state.global_step == STEPS
    assert all(torch.equal(a, b) for a, b in zip(state(through), state(resumed), strict=True))
    assert losses(through) == losses(resumed)
    return through


def test_given_as_optimizers_it_trains_and_resumes_bit_for_bit(tmp_path: Path):
    rows = tokens("".join(topics.values()).encode())

    def make(folder: Path) -> Any:
        net = model()
        opt = ACMo(param_groups(net, weight_decay=1e-4), lr=0.5, max_grad_norm=1.0, psi="sqrt")
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=STEPS + 1)
        # 0 turns off the Trainer's own clipping: ACMo clips in the same pass
        return training(folder, net, rows, {"optimizers": (opt, schedule)}, max_grad_norm=0.0)

    trainer = assert_resumed_equals_going_on(make, tmp_path)
    assert losses(trainer)[-1] < 0.8 * losses(trainer)[0]
    assert {int(s["step"]) for s in trainer.optimizer.state.values()} == {STEPS}


@pytest.mark.skipif(not MULTI30K.exists(), reason="no folder with the files of Multi30k")
def test_hf_trainer_accumulates_clips_and_resumes_bit_for_bit(tmp_path: Path):
    with gzip.open(MULTI30K) as file:
        rows = tokens(file.read(2**16))
    given = {"optimizer_cls_and_kwargs": (ACMo, {"lr": 0.5, "momentum": 0.95, "momentum_dtype": torch.bfloat16})}

    def make(folder: Path) -> Any:
        return training(
            folder, model(), rows, given,
            gradient_accumulation_steps=2, max_grad_norm=1.0, weight_decay=1e-4, lr_scheduler_type="cosine",
            warmup_steps=4,
        )  # fmt: skip

    trainer = assert_resumed_equals_going_on(make, tmp_path)
    assert losses(trainer)[-1] < 0.8 * losses(trainer)[0]
    decays = [group["weight_decay"] for group in trainer.optimizer.param_groups]
    assert decays == [1e-4, 0.0]
    assert {s["momentum_buffer"].dtype for s in trainer.optimizer.state.values()} == {torch.bfloat16}
