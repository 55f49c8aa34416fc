"""Train a small net on scikit-learn's digits with Lightning and RowACMo, under a one-cycle schedule.

The schedule cycles the rate, and the momentum against it. Lightning saves a checkpoint after every epoch; --resume
continues from one. Nothing is downloaded.

    pip install . lightning scikit-learn      # in the clone
    python examples/lightning.py --epochs 10
    python examples/lightning.py --epochs 10 --resume runs/lightning/epoch=4.ckpt
"""

import argparse
import sys
from pathlib import Path

# Python puts a script's folder first on its path, where "lightning" is this very file: look for the package elsewhere.
sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != Path(__file__).resolve().parent]

import lightning  # noqa: E402
import torch  # noqa: E402
from lightning.pytorch.callbacks import ModelCheckpoint  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import cross_entropy  # noqa: E402
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset  # noqa: E402

from acmo import RowACMo, param_groups  # noqa: E402

Batch = tuple[Tensor, Tensor]


class Digits(lightning.LightningModule):
    """Two hidden layers."""

    def __init__(self, lr: float) -> None:
        super().__init__()
        self.lr = lr
        self.net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: Batch, _: int) -> Tensor:
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, prog_bar=True)
        return loss

    def on_train_batch_end(self, *_: object) -> None:
        # The angle between the step just taken and its gradient, from norms that the step computes anyway.
        self.log("cos", self.optimizers().telemetry()["cos_update_grad"], prog_bar=True)

    def validation_step(self, batch: Batch, _: int) -> None:
        self.log("accuracy", (self.net(batch[0]).argmax(dim=1) == batch[1]).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> dict[str, object]:
        opt = RowACMo(param_groups(self, weight_decay=0.1, scopes=True), lr=self.lr)
        steps = int(self.trainer.estimated_stepping_batches)
        schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=self.lr, total_steps=steps + 1)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loaders(seed: int) -> tuple[DataLoader[Batch], DataLoader[Batch]]:
    """80 % to train on, 20 % to validate on, every class in proportion."""
    pixels, target = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(target)
    x, x_val, y, y_val = train_test_split(images, labels, test_size=0.2, random_state=seed, stratify=labels)
    rows = TensorDataset(x, y)
    # Shuffles by seed and number of the epoch, so that a resumed training sees the batches that it would have seen:
    # Lightning sets the number, but saves no generators.
    shuffled = DistributedSampler(rows, num_replicas=1, rank=0, seed=seed)
    return DataLoader(rows, batch_size=64, sampler=shuffled), DataLoader(TensorDataset(x_val, y_val), batch_size=360)


def main() -> None:
    """Read the options, train, print the accuracy on the validation data."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/lightning"), help="where checkpoints go")
    parser.add_argument("--resume", type=Path, help="a checkpoint to resume from")
    args = parser.parse_args()

    lightning.seed_everything(args.seed)
    train, validation = loaders(args.seed)
    model = Digits(args.lr)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=args.epochs,
        callbacks=[ModelCheckpoint(args.output, filename="{epoch}", save_top_k=-1)],
        default_root_dir=args.output,
        logger=False,
        enable_progress_bar=sys.stderr.isatty(),
        log_every_n_steps=10,
    )
    trainer.fit(model, train, validation, ckpt_path=args.resume)
    accuracy = float(trainer.callback_metrics["accuracy"])
    print(f"validation accuracy after {trainer.current_epoch} epochs, {trainer.global_step} steps: {accuracy:.2%}")


if __name__ == "__main__":
    main()
