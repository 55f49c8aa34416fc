"""What the lab costs over a bare loop around the same Transformer: at most 15 %.

The bare loop has its batches padded and in memory before the clock starts, calls the model as its documentation shows,
and logs nothing. The lab gathers each batch from the memory-mapped tokens, normalises by the number of target tokens,
clips, writes its lines, and runs torch in deterministic mode. One thread, interleaved rounds; evaluation apart.

    python benchmarks/translation.py --data FOLDER [--rounds 5] [--steps 20] [--size tiny]
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from acmo.lab.config import RunConfig
from acmo.lab.tasks.base import Recipe, Split
from acmo.lab.tasks.translation import Multi30k
from acmo.lab.training import Training
from acmo.lab.translation.model import PAD
from acmo.rivals import REGISTRY


class Unmeasured(Multi30k):
    """Multi30k without its evaluation, which is no part of what is compared."""

    def evaluate(self, model: torch.nn.Module, split: Split) -> dict[str, float]:
        return {"loss": 0.0, "bleu": 0.0}

    def samples(self, model: torch.nn.Module) -> list[dict[str, str]]:
        return []


def task_of(config: RunConfig, size: str) -> Unmeasured:
    task = Unmeasured(size=size, data=config.data, seed=config.seed)
    task.recipe = Recipe(steps=config.steps, batch_size=task.recipe.batch_size, max_grad_norm=1.0)
    task.prepare()
    return task


def bare(config: RunConfig, size: str) -> tuple[float, float]:
    """Seconds of the processor for all steps, and the last loss."""
    task = task_of(config, size)
    torch.manual_seed(config.seed)
    model = task.model().train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = REGISTRY[config.optimizer].build(params, **config.settings)
    made = []
    for indices in task.batches(0)[: config.steps]:
        batch = task.collate(indices, 0)
        labels = torch.full_like(batch["target_in"], PAD).flatten()
        labels[batch["places"]] = batch["labels"]
        made.append((batch["source"], batch["source_mask"], batch["target_in"], labels))
    start = time.process_time()
    for source, mask, target_in, labels in made:
        optimizer.zero_grad()
        logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target_in, use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), labels, ignore_index=PAD, label_smoothing=0.1)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    return time.process_time() - start, loss.item()


def lab(config: RunConfig, size: str) -> tuple[float, float]:
    """The same by the lab: its loop with all that it does between steps."""
    from acmo.lab import randomness
    from acmo.lab.metrics import Metrics, read
    from acmo.lab.optimizers import build
    from acmo.lab.ranks import Ranks

    task = task_of(config, size)
    torch.manual_seed(config.seed)
    model = task.model()
    training = Training(task, model, build(config.optimizer, config.settings, model), Ranks(torch.device("cpu")))
    training.log_every = 1
    with tempfile.TemporaryDirectory() as folder, randomness.deterministic(True):
        training.metrics = Metrics(Path(folder))
        start = time.process_time()
        training.run(None, lambda logged: False, lambda: None)
        seconds = time.process_time() - start
        training.metrics.close()
        return seconds, read(Path(folder), "train")[-1]["loss"]


def main() -> None:
    """Print a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with Multi30k")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--size", default="tiny")
    args = parser.parse_args()
    torch.set_num_threads(1)
    config = RunConfig(
        task="multi30k-ende",
        optimizer="adam",
        settings={"lr": 1e-3},
        data=args.data,
        steps=args.steps,
        deterministic=True,
    )
    ratios, times = [], []
    for number in range(args.rounds + 1):
        order = (bare, lab) if number % 2 else (lab, bare)
        seen = {loop: loop(config, args.size) for loop in order}
        assert abs(seen[bare][1] - seen[lab][1]) < 1e-3 * seen[bare][1], f"the two did not learn the same: {seen}"
        if number:  # the first one warms up
            ratios.append(seen[lab][0] / seen[bare][0])
            times.append((seen[bare][0], seen[lab][0]))
    b, a = (statistics.median(column) / args.steps * 1e3 for column in zip(*times, strict=True))
    rounds = f"{args.rounds} rounds of {args.steps} steps"
    print(f"multi30k-ende:{args.size}, adam, one thread, torch {torch.__version__}, {rounds}")
    print(f"bare {b:.0f} ms a step, lab {a:.0f} ms a step, ratio {statistics.median(ratios):.3f} (all: ", end="")
    print(", ".join(f"{ratio:.3f}" for ratio in ratios) + ")")


if __name__ == "__main__":
    main()
