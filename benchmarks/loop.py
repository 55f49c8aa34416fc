"""What the lab's loop costs over a bare PyTorch loop on the same task; our limit is 5 %.

Both train the same net on the same batches, with the same augmentation, and validate after each epoch; the lab also
writes its lines, its telemetry, its result and, every 30 s, a checkpoint. One process, interleaved rounds, one thread.

    python benchmarks/loop.py [--rounds 7] [--data FOLDER]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy

from acmo.lab.config.run_options import RunConfig
from acmo.lab.runs.run_folder import run
from acmo.lab.tasks import find_task
from acmo.rivals import REGISTRY


class Seconds(NamedTuple):
    """Of the processor, which others on the machine disturb little, and of the clock on the wall."""

    processor: float
    wall: float


def bare(config: RunConfig) -> float:
    """The loop that everyone writes; returns the last validation accuracy."""
    task = find_task(config.task, config.data, config.seed)
    task.recipe = task.recipe.changed(config)
    task.prepare()
    torch.manual_seed(config.seed)
    model = task.model()
    optimizer = REGISTRY[config.optimizer].build(model.parameters(), **config.settings)
    step, accuracy = 0, 0.0
    for epoch in range(task.recipe.epochs or 10**9):
        model.train()
        for indices in task.batches(epoch):
            x, y = task.collate(indices, epoch)
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            step += 1
            if step == task.recipe.steps:
                break
        model.eval()
        with torch.no_grad():
            accuracy = task.evaluate(model, "valid")["accuracy"]
        if step == task.recipe.steps:
            break
    return accuracy


def lab(config: RunConfig) -> float:
    """The same by the lab."""
    with tempfile.TemporaryDirectory() as folder:
        return run(config, Path(folder) / "run").valid["accuracy"]


def timed(loop: Callable[[RunConfig], float], config: RunConfig) -> tuple[Seconds, float]:
    processor, wall = time.process_time(), time.perf_counter()
    accuracy = loop(config)
    return Seconds(time.process_time() - processor, time.perf_counter() - wall), accuracy


def compare(config: RunConfig, rounds: int) -> str:
    """A line of the table."""
    times: dict[Callable[[RunConfig], float], list[Seconds]] = {bare: [], lab: []}
    for number in range(rounds + 1):
        order = list(times) if number % 2 else list(times)[::-1]
        results = [timed(loop, config) for loop in order]
        assert results[0][1] == results[1][1], "the two loops did not learn the same"
        if number:  # the first one warms up
            for loop, (seconds, _) in zip(order, results, strict=True):
                times[loop].append(seconds)
    cells = []
    for kind in Seconds._fields:
        b, a = (statistics.median(getattr(s, kind) for s in times[loop]) for loop in (bare, lab))
        # Rounds side by side saw the same machine: the median of their ratios, not the ratio of medians.
        ratio = statistics.median(getattr(y, kind) / getattr(x, kind) for x, y in zip(*times.values(), strict=True))
        cells += [f"{b:.2f}", f"{a:.2f}", f"{ratio:.3f}"]
    return f"| {config.task} | {config.optimizer} | {' | '.join(cells)} |"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's binary version; without it, digits alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"one thread, {args.rounds} rounds, torch {torch.__version__}, s = seconds of a whole run\n")
    print("| task | optimizer | processor: bare s | lab s | ratio | wall: bare s | lab s | ratio |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for optimizer in ("sgd-momentum", "acmo"):
        print(compare(RunConfig(task="digits", optimizer=optimizer, checkpoint_every="30s"), args.rounds), flush=True)
        if args.data is not None:
            config = RunConfig(
                task="cifar10:tiny", optimizer=optimizer, data=args.data, steps=60, checkpoint_every="30s"
            )
            print(compare(config, args.rounds), flush=True)


if __name__ == "__main__":
    main()
