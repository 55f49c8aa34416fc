"""Train a small transformer on scikit-learn's digits, sharded over any number of ranks with FSDP2, with RowACMo.

Every rank holds a part of each tensor: of the parameters, of the gradients, and of RowACMo's one moment. FSDP2 cuts
between rows, so norms by row need no message; what is cut (biases, tables by column) shares one small message per step.
Checkpoints are torch.distributed.checkpoint's: start the same command again, on as many ranks as you like, and it
resumes from the last complete one.

    pip install . scikit-learn      # in the clone
    torchrun --nproc-per-node 2 examples/fsdp2.py --steps 300
    torchrun --nproc-per-node 4 examples/fsdp2.py --steps 300
"""

import argparse
import os
import shutil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR

import acmo

BATCH = 64  # of all ranks together
VALIDATION = 360  # the last images: those that are not trained on


class Net(nn.Module):
    """An image of 8x8 pixels is a sentence of eight rows."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.rows = nn.Linear(8, width)
        self.place = nn.Parameter(0.1 * torch.randn(8, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        )
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        x: Tensor = self.rows(images) + self.place
        for block in self.blocks:
            x = block(x)
        scores: Tensor = self.head(x.mean(dim=1))
        return scores


class Training(Stateful):
    """All that a checkpoint must hold. torch.distributed.checkpoint asks for the state, and gives it back."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        torch.manual_seed(args.seed)  # every rank makes the same net, and then keeps its part
        self.net = Net(args.width, args.depth).to(device)
        for block in self.net.blocks:
            fully_shard(block)
        fully_shard(self.net)
        # After fully_shard: the optimizer must see the sharded parameters. They know their mesh; it needs no more.
        self.opt = acmo.RowACMo(acmo.param_groups(self.net, weight_decay=0.1, scopes=True), lr=args.lr)
        self.schedule = CosineAnnealingLR(self.opt, args.steps)
        self.step = 0

    def state_dict(self) -> dict[str, Any]:
        net, opt = get_state_dict(self.net, self.opt)  # by name and sharded, so that any number of ranks can load it
        return {"net": net, "opt": opt, "schedule": self.schedule.state_dict(), "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(self.net, self.opt, model_state_dict=state["net"], optim_state_dict=state["opt"])
        self.schedule.load_state_dict(state["schedule"])
        self.step = state["step"]


def save(training: Training, folder: Path) -> Path:
    """Write a checkpoint that is either there, and complete, or not there."""
    done = folder / f"step-{training.step:08d}"
    unfinished = done.with_suffix(".part")
    if dist.get_rank() == 0:
        shutil.rmtree(unfinished, ignore_errors=True)  # of a job that died here
        unfinished.mkdir(parents=True)
    dist.barrier()
    dcp.save({"training": training}, checkpoint_id=unfinished)  # returns when all ranks have written their parts
    if dist.get_rank() == 0:
        unfinished.rename(done)
        for old in complete(folder)[:-2]:
            shutil.rmtree(old)
    dist.barrier()
    return done


def complete(folder: Path) -> list[Path]:
    """The checkpoints that are complete, oldest first."""
    return sorted(path for path in folder.glob("step-*") if not path.suffix)


def resume(training: Training, folder: Path) -> Path | None:
    """Load the last complete checkpoint, if there is one."""
    last = [complete(folder)[-1:]]  # rank 0 decides: on a network drive the others may see another list
    dist.broadcast_object_list(last, src=0)
    if not last[0]:
        return None
    dcp.load({"training": training}, checkpoint_id=last[0][0])
    return last[0][0]


def train_step(training: Training, images: Tensor, labels: Tensor, seed: int) -> float:
    """One step on this rank's part of a batch; returns the loss of the whole batch."""
    # The batch follows from the number of the step alone: nothing about the data needs saving.
    draw = torch.Generator().manual_seed(seed * 1_000_003 + training.step)
    batch = torch.randint(len(labels), (BATCH,), generator=draw)
    mine = batch.tensor_split(dist.get_world_size())[dist.get_rank()]
    training.opt.zero_grad()
    loss = cross_entropy(training.net(images[mine]), labels[mine], reduction="sum") / BATCH
    (loss * dist.get_world_size()).backward()  # FSDP2 averages gradients over the ranks, and we want their sum
    training.opt.step()
    training.schedule.step()
    training.step += 1
    total = loss.detach().clone()
    dist.all_reduce(total)
    return total.item()


def main() -> None:
    """Read the options, train, and print on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--folder", type=Path, default=Path("runs/fsdp2"), help="where checkpoints go and come from")
    parser.add_argument("--fresh", action="store_true", help="ignore the checkpoints that are there, and remove them")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error(f"start it with torchrun, e.g.: torchrun --nproc-per-node 2 {parser.prog}")

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    chief = dist.get_rank() == 0
    if args.fresh and chief:
        shutil.rmtree(args.folder, ignore_errors=True)
    dist.barrier()

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32, device=device) / 16
    labels = torch.tensor(digits.target, device=device)
    training = Training(args, device)
    start = resume(training, args.folder)
    if chief:
        print(f"{dist.get_world_size()} ranks, from " + (f"step {training.step} ({start})" if start else "scratch"))

    while training.step < args.steps:
        loss = train_step(training, images[:-VALIDATION], labels[:-VALIDATION], args.seed)
        if chief and training.step % args.print_every == 0:
            shown = (
                training.opt.telemetry()
            )  # sends nothing, so rank 0 may call it alone; angles are of the step before
            print(
                f"step {training.step:5d}  loss {loss:.6f}  ‖g‖ {shown['grad_norm']:.3f}  "
                f"cos(m, g) {shown['cos_update_grad']:.3f}  skipped {shown['skipped_steps']}",
                flush=True,
            )
        if training.step % args.save_every == 0 or training.step == args.steps:
            saved = save(training, args.folder)
            if chief:
                print(f"saved {saved}", flush=True)

    with torch.no_grad():  # all ranks compute all of it: a forward pass of FSDP2 needs every rank
        scores = training.net(images[-VALIDATION:])
    if chief:
        loss, right = cross_entropy(scores, labels[-VALIDATION:]), scores.argmax(1) == labels[-VALIDATION:]
        print(f"after {training.step} steps: validation loss {loss:.6f}, accuracy {right.float().mean():.1%}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
