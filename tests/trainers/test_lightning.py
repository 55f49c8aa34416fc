"""Lightning: short real trainings; it hands the step a closure, and resumes from its own checkpoints."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from acmo import ACMo

# Lightning's own, of every fit.
pytestmark = pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated")
EPOCHS = 4


@functools.cache
def modules() -> tuple[Any, Any]:
    """The modules to train, by closure and by hand; made when first used: Lightning takes 6 s to import."""
    lightning = pytest.importorskip("lightning", reason="lightning is not installed: it comes with acmo[dev-all]")

    class Digits(lightning.LightningModule):  # type: ignore[name-defined, misc]
        """A small network, ACMo, and a scheduler that steps with it."""

        def __init__(self, **options: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.options = {"lr": 0.5, "psi": "sqrt", **options}
            self.net = nn.Sequential(nn.Linear(64, 24), nn.ReLU(), nn.Linear(24, 10))
            self.losses: list[float] = []
            self.told: list[dict[str, Any]] = []

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
            loss = cross_entropy(self.net(batch[0]), batch[1])
            self.losses.append(loss.item())
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            self.told.append(self.optimizers().telemetry())

        def configure_optimizers(self) -> dict[str, Any]:
            opt = ACMo(self.parameters(), **self.options)
            schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 0.5, self.trainer.estimated_stepping_batches + 1)
            return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    class ByHand(Digits):
        """The loop's steps taken by the user: manual optimization."""

        automatic_optimization = False

        def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
            loss = super().training_step(batch, index)
            opt = self.optimizers()
            opt.zero_grad()
            self.manual_backward(loss)
            opt.step()
            self.lr_schedulers().step()

    return Digits, ByHand


def loader() -> DataLoader[Any]:
    data = load_digits()
    rows = TensorDataset(torch.tensor(data.data[:800], dtype=torch.float32) / 16, torch.tensor(data.target[:800]))
    # Shuffled by the number of the epoch, which Lightning sets: it saves no generators.
    return DataLoader(rows, batch_size=50, sampler=DistributedSampler(rows, num_replicas=1, rank=0))


def fit(module: Any, folder: Path, resume: Path | None = None, **options: Any) -> Any:
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=EPOCHS,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[ModelCheckpoint(folder, save_top_k=-1, filename="{epoch}")],
        default_root_dir=folder,
        **options,
    )
    trainer.fit(module, loader(), ckpt_path=resume)
    return module


def state(module: Any) -> list[Tensor]:
    opt = module.trainer.optimizers[0]
    return [*module.parameters(), *(x for p in module.parameters() for x in opt.state[p].values())]


@pytest.mark.filterwarnings("ignore:The dirpath has changed")  # resumed into a folder of its own, on purpose
@pytest.mark.parametrize(
    "how",
    [{}, {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}, {"precision": "bf16-mixed"}],
    ids=["plain", "accumulating, clipping", "bf16-mixed"],
)
def test_lightning_training_resumes_bit_for_bit(how: dict[str, Any], tmp_path: Path):
    Digits, _ = modules()
    through = fit(Digits(), tmp_path, **how)
    resumed = fit(Digits(), tmp_path / "again", resume=tmp_path / "epoch=1.ckpt", **how)
    half = len(through.losses) // 2
    assert resumed.losses == through.losses[half:]
    assert all(torch.equal(a, b) for a, b in zip(state(through), state(resumed), strict=True))
    assert sum(through.losses[-5:]) < 0.5 * sum(through.losses[:5])
    steps = len(through.losses) // how.get("accumulate_grad_batches", 1)
    assert {int(s["step"]) for s in through.trainer.optimizers[0].state.values()} == {steps}
    assert all(told["moment_norm"] <= 1.9 * told["grad_norm"] * 1.001 for told in through.told if told)


def test_with_a_closure_or_by_hand_the_training_is_the_same(tmp_path: Path):
    Digits, ByHand = modules()
    automatic, by_hand = fit(Digits(), tmp_path / "a"), fit(ByHand(), tmp_path / "b")
    assert automatic.losses == by_hand.losses
    assert all(torch.equal(a, b) for a, b in zip(state(automatic), state(by_hand), strict=True))
