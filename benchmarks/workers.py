"""How the lab shares out cores: a process with one thread for each core, or one process with all threads.

The same runs each way, by processes that have imported torch before the clock starts.

    python benchmarks/workers.py [--runs 8] [--data FOLDER]
"""

import argparse
import os
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import torch

from acmo.lab.config.run_options import RunConfig
from acmo.lab.runs.run_folder import run


def do(config: RunConfig) -> None:
    """One run, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        run(config, Path(folder) / "run")


def seconds(config: RunConfig, runs: int, processes: int, threads: int) -> float:
    """How long the runs take; a first one in every process is not counted."""
    configs = [config.model_copy(update={"seed": seed, "threads": threads}) for seed in range(runs)]
    with get_context("spawn").Pool(processes) as pool:
        pool.map(do, [configs[0]] * processes, chunksize=1)
        start = time.perf_counter()
        pool.map(do, configs, chunksize=1)
        return time.perf_counter() - start


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--data", type=Path, help="folder with CIFAR-10's binary version; without it, digits alone")
    args = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    configs = [RunConfig(task="digits", optimizer="acmo")]
    if args.data is not None:
        configs.append(RunConfig(task="cifar10:tiny", optimizer="acmo", data=args.data, steps=60, evaluate_every=1000))
    print(f"{args.runs} runs, {cores} cores, torch {torch.__version__}: seconds for all\n")
    print(f"| task | 1 process, 1 thread | 1 process, {cores} threads | {cores} processes, 1 thread each |")
    print("|---|---:|---:|---:|")
    for config in configs:
        ways = ((1, 1), (1, cores), (cores, 1))
        cells = [f"{seconds(config, args.runs, *way):.1f}" for way in ways]
        print(f"| {config.task} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
