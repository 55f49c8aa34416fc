"""Compare steps inside backward with steps after it: the time of backward and step, and the memory that backward takes.

    python benchmarks/step_in_backward.py [--layers 200] [--threads 1] [--rounds 30]

The net has as many linear layers, each with a bias, on one example. Both ways take turns in one process. Times are of
the CPU, in all threads, so that other processes disturb little. Memory is the most that tensors made during a second
backward take at one time, from torch's profiler.
"""

import argparse
import statistics
import time

import torch

import acmo


class Run:
    """A net and its optimizer; ``way`` is "backward" (no step), "after" or "inside"."""

    def __init__(self, layers: int, width: int, way: str) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(layers)])
        self.x = torch.randn(1, width)
        self.opt = None
        if way != "backward":
            make = acmo.step_in_backward if way == "inside" else lambda model, cls: cls(model.parameters())
            self.opt = make(self.model, acmo.RowACMo)
        self.times = []

    def step(self) -> None:
        """Time one backward, with its step."""
        loss = self.model(self.x).square().sum()
        start = time.process_time()
        loss.backward()
        if self.opt is not None:
            self.opt.step()
        self.times.append(time.process_time() - start)
        self.model.zero_grad()

    def measure_memory(self) -> int:
        """Return the bytes that tensors made during backward take at most."""
        loss = self.model(self.x).square().sum()
        with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
            loss.backward()
        held = peak = 0
        for event in profile.profiler.kineto_results.events():
            if event.name() == "[memory]":
                held += event.nbytes()
                peak = max(peak, held)
        return peak


def main() -> None:
    """Print one row per width."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=200)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("| width | backward, ms | with step after, ms | inside, ms | more per parameter, µs | MB after | MB inside |")
    print("|---|---|---|---|---|---|---|")
    for width in (8, 256, 1024):
        runs = [Run(args.layers, width, way) for way in ("backward", "after", "inside")]
        for _ in range(3 + args.rounds):
            for run in runs:
                run.step()
        alone, after, inside = (1e3 * statistics.median(run.times[3:]) for run in runs)
        extra = 1e3 * (inside - after) / (2 * args.layers)
        memory = [run.measure_memory() / 1e6 for run in runs[1:]]
        print(
            f"| {width} | {alone:.1f} | {after:.1f} | {inside:.1f} | {extra:.0f} | {memory[0]:.1f} | {memory[1]:.1f} |"
        )


if __name__ == "__main__":
    main()
