"""Compare the time of ACMo's steps in two source trees, before and after a change, on the sets of `acmo bench`.

    python benchmarks/before_after.py OLD/.venv/bin/python NEW/.venv/bin/python [--rounds 30]

Both trees run at the same time in processes of their own, which take turns: one times a few steps while the other
waits. What disturbs the machine then disturbs both. Printed are the medians and their ratio, after / before.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

SETS = ("10k", "1000x1000", "resnet50", "transformer")


def work(options: str, threads: int) -> None:
    """Read the name of a set and a number of steps per line, print the seconds per step."""
    import torch

    import acmo
    from acmo.bench.sets import SETS as sets

    torch.set_num_threads(threads)
    optimizers = {}
    for line in sys.stdin:
        key, steps = line.split()
        if key not in optimizers:
            optimizers.clear()  # one set at a time in memory
            gradients = sets[key].gradients()
            optimizers[key] = acmo.ACMo(sets[key].params(gradients), lr=1e-6, **json.loads(options))
            for _ in range(3):
                optimizers[key].step()
        start = time.perf_counter()
        for _ in range(int(steps)):
            optimizers[key].step()
        print((time.perf_counter() - start) / int(steps), flush=True)


def main() -> None:
    """Print the medians of every set in both trees, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="the Python of the old tree's environment, or --work")
    parser.add_argument("after", help="the Python of the new tree's environment")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--options", default="{}", help="options of ACMo, as JSON")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sets", default=",".join(SETS))
    given = parser.parse_args()
    workers = [
        subprocess.Popen(
            [python, __file__, "--work", given.options, str(given.threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for python in (given.before, given.after)
    ]
    for key in given.sets.split(","):
        times: list[list[float]] = [[], []]
        steps = 1
        for turn in range(given.rounds):
            for k in (0, 1) if turn % 2 else (1, 0):
                stdin, stdout = workers[k].stdin, workers[k].stdout
                assert stdin is not None
                assert stdout is not None
                print(key, steps, file=stdin, flush=True)
                times[k].append(float(stdout.readline()))
            if turn == 0:
                steps = max(1, round(0.05 / times[0][0]))
        before, after = (statistics.median(t[1:]) for t in times)
        print(f"{key:12} {before * 1e3:9.4f} ms -> {after * 1e3:9.4f} ms   ratio {after / before:.3f}", flush=True)
    for worker in workers:
        worker.terminate()


if __name__ == "__main__":
    work(sys.argv[2], int(sys.argv[3])) if sys.argv[1:2] == ["--work"] else main()
