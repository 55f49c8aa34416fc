"""What the lab costs over a bare loop around the same Transformer: at most 15 %.

A bare loop has its batches padded and in memory before the clock starts, and logs nothing. There are two: "plain" calls
the model as its documentation shows, with logits for what only fills up a batch too; "tight" takes the lab's own loss,
which has none of these, so that nothing the lab saves there pays for what it costs elsewhere. The lab gathers batches
from the memory-mapped tokens, normalises by the number of target tokens, clips, writes a line every step, and runs
torch in deterministic mode. One thread, interleaved rounds; evaluation apart.

    python benchmarks/translation.py --data FOLDER [--rounds 5] [--steps 20] [--size tiny]
"""

import argparse
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from acmo.lab.config.run_options import RunConfig
from acmo.lab.runs.training import Training
from acmo.lab.tasks.base import Recipe, Split
from acmo.lab.tasks.translation.model import PAD, token_losses
from acmo.lab.tasks.translation.translation_task import Multi30k
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
    return task


def bare(config: RunConfig, size: str, *, tight: bool) -> tuple[float, float]:
    """Seconds of the processor for all steps, and the last loss."""
    task = task_of(config, size)
    torch.manual_seed(config.seed)
    model = task.model().train()
    params = [p for p in model.parameters() if p.requires_grad]
    optimizer = REGISTRY[config.optimizer].build(params, **config.settings)
    made = [task.collate(indices, 0) for indices in task.batches(0)[: config.steps]]
    for batch in made:
        batch["filled"] = torch.full_like(batch["target_in"], PAD).flatten()
        batch["filled"][batch["places"]] = batch["labels"]
    loss_of = _tight if tight else _plain
    start = time.process_time()
    for batch in made:
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
    return time.process_time() - start, loss.item()


def _plain(model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    source, mask, target_in = batch["source"], batch["source_mask"], batch["target_in"]
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target_in, use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), batch["filled"], ignore_index=PAD, label_smoothing=0.1)


def _tight(model: torch.nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return token_losses(model, batch, 0.1).mean()


def lab(config: RunConfig, size: str) -> tuple[float, float]:
    """The same by the lab: its loop with all that it does between steps."""
    from acmo.lab.config.optimizers import build
    from acmo.lab.results.metrics_file import MetricsWriter, read_metrics
    from acmo.lab.runs import randomness
    from acmo.lab.runs.ranks import Ranks

    task = task_of(config, size)
    torch.manual_seed(config.seed)
    model = task.model()
    training = Training(task, model, build(config.optimizer, config.settings, model), Ranks(torch.device("cpu")))
    training.log_every = 1
    with tempfile.TemporaryDirectory() as folder, randomness.deterministic(True):
        training.metrics = MetricsWriter(Path(folder))
        start = time.process_time()
        training.run(None, lambda logged: False, lambda: None)
        seconds = time.process_time() - start
        training.metrics.close()
        return seconds, read_metrics(Path(folder)).of("train")[-1]["loss"]


def main() -> None:
    """Print a line a loop."""
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
    loops = {"plain": partial(bare, tight=False), "tight": partial(bare, tight=True), "lab": lab}
    rounds: list[dict[str, float]] = []
    for number in range(args.rounds + 1):
        order = list(loops) if number % 2 else list(loops)[::-1]
        seen = {name: loops[name](config, args.size) for name in order}
        losses = {name: loss for name, (_, loss) in seen.items()}
        close = all(abs(loss - losses["lab"]) < 1e-3 * losses["lab"] for loss in losses.values())
        assert close, f"they did not learn the same: {losses}"
        if number:  # the first one warms up
            rounds.append({name: seconds for name, (seconds, _) in seen.items()})
    how = f"{args.rounds} rounds of {args.steps} steps"
    print(f"multi30k-ende:{args.size}, adam, one thread, torch {torch.__version__}, {how}")
    for name in loops:
        ratios = [one["lab"] / one[name] for one in rounds]
        step = statistics.median(one[name] for one in rounds) / args.steps * 1e3
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        print(f"{name:5}: {step:6.1f} ms a step; the lab takes {statistics.median(ratios):.3f} times that ({spread})")


if __name__ == "__main__":
    main()
