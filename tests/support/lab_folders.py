"""Folders as the lab leaves them, made up, with as many optimizers, settings, seeds and epochs as a test needs."""

import hashlib
import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from acmo.lab.config.plan import slug

PAPER = ("acmo", "sgd-momentum", "adam", "amsgrad", "adamw", "padam", "adabound")


def write_comparison(
    folder: Path,
    optimizers: Sequence[str] = PAPER[:3],
    rates: Sequence[float] = (0.1, 0.01, 0.001),
    seeds: int = 2,
    epochs: int = 10,
    tasks: Sequence[str] = ("digits",),
    metric: str = "accuracy",
    contenders: Sequence[dict[str, Any]] = (),
    every_seed: bool = False,
    command: Sequence[str] = ("acmo", "compare", "digits"),
    **plan: Any,
) -> Path:
    """Write a comparison: 0.01 is the best learning rate of all, Adam diverges at 0.1, the first optimizer is best.

    Args:
      every_seed: repeat every setting with all seeds, not the best alone.
    """
    decay = {} if plan.get("protocol", "default-wd") == "default-wd" else {"weight_decay": 5e-4}
    grids = {"all": {"lr": list(rates), **{option: [value] for option, value in decay.items()}}}
    config = {"tasks": list(tasks), "optimizers": list(optimizers), "contender": list(contenders), "seeds": seeds,
              "tune_seed": 0, "protocol": "default-wd", "grids": grids,
              "baselines": ["sgd-momentum", "adam"], **plan}  # fmt: skip
    machine = {"system": "Linux", "processor": "Testium", "cores": 2, "threads": 1, "gpus": []}
    provenance = {"command": list(command), "commit": "c0ffee", "versions": {"torch": "2.13.0"}, "machine": machine}
    scores = {task: {"metric": metric, "best": "max"} for task in tasks}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "comparison.json").write_text(json.dumps({"config": config, "provenance": provenance, "scores": scores}))
    labels = [*((name, name) for name in optimizers), *((c["label"], c["optimizer"]) for c in contenders)]
    for task in tasks:
        for place, (label, optimizer) in enumerate(labels):
            for lr in rates:
                for seed in range(seeds + 1 if every_seed or lr == sorted(rates)[len(rates) // 2] else 1):
                    write_run(folder, task, label, optimizer, lr, seed, epochs, metric, place, **decay)
    return folder


def write_run(
    folder: Path, task: str, label: str, optimizer: str, lr: float, seed: int, epochs: int, metric: str, place: int,
    **settings: float,
) -> Path:  # fmt: skip
    """Write one run; its score falls with the place of its optimizer and with the distance of lr from 0.01."""
    name = hashlib.sha256(f"{task} {label} {lr} {seed}".encode()).hexdigest()[:12]
    run = folder / "runs" / slug(task) / slug(label) / name
    run.mkdir(parents=True)
    config = {"task": task, "optimizer": optimizer, "settings": {"lr": lr, **settings}, "seed": seed}
    (run / "config.json").write_text(json.dumps({"config": config, "provenance": {}}))
    draw = random.Random(f"{task} {label} {lr} {seed}")
    diverged = label == "adam" and lr >= 0.1
    top = 0.9 - 0.02 * place - 0.05 * abs(math.log10(lr) + 2) + 0.002 * draw.random()
    top *= 30 if metric == "bleu" else 1
    lines = []
    for epoch in range(1, (2 if diverged else epochs) + 1):
        at = {"step": 20 * epoch, "epoch": epoch, "seconds": 0.25 * epoch * (1 + place)}
        angles = {"cos_grad_moment": draw.uniform(-0.5, 0.5), "beta_hat": draw.uniform(0.3, 1.2), "clip_scale": 1.0}
        loss = None if diverged and epoch == 2 else 2.3 / epoch
        lines.append({"kind": "train", **at, "loss": loss, "lr": lr, **(angles if optimizer == "acmo" else {})})
        if loss is not None:
            extra = {"loss_per_sentence": 30 / epoch, "bleu_signature": "x"} if metric == "bleu" else {}
            lines.append({"kind": "valid", **at, "loss": 2.5 / epoch, metric: top * (1 - 0.5**epoch), **extra})
        if metric == "bleu" and loss is not None:
            said = {"source": "a dog", "reference": "ein Hund", "output": f"{label} {epoch}"}
            lines.append({"kind": "sample", **at, "split": "valid", **said})
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    valid = {"loss": 2.5 / epochs, metric: top * (1 - 0.5**epochs)}
    if metric == "bleu":
        valid |= {"bleu_signature": "nrefs:1|tok:13a", "decoding": "greedy", "translated": 1014}
    result = {"status": "finished", "phase": "final" if seed else "tune", "valid": valid, "best_valid": valid,
              "test": {"loss": 1.0, metric: 0.99 * top} if seed else None, "steps": 20 * epochs, "epochs": epochs,
              "seconds": 0.25 * epochs, "ms_per_step_optimizer": 0.1 * (3 - place % 3),
              "state_bytes": 400 * (1 + place), "parameters": 100, "reason": None}  # fmt: skip
    if diverged:
        result |= {"status": "diverged", "valid": {}, "best_valid": {}, "test": None, "reason": "the loss was nan"}
    (run / "result.json").write_text(json.dumps(result))
    return run
