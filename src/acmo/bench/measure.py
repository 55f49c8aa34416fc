"""Time, bandwidth and memory of steps."""

import gc
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from acmo import native

Step = Callable[[], Any]

# A contender this many times as slow as their median takes part in fewer rounds, but in FEWEST of them at least.
SLOW, FEWEST = 4, 5


@dataclass(frozen=True)
class Times:
    """Median and quartiles of so many steps, in milliseconds; and the seconds of each, by its round."""

    ms: float
    q1_ms: float
    q3_ms: float
    steps: int
    by_round: Mapping[int, float]


@dataclass(frozen=True)
class Ratio:
    """Median and quartiles of the ratios of two times within each round that both took part in."""

    value: float
    low: float
    high: float
    steps: int

    def convert(self, function: Callable[[float], float]) -> "Ratio":
        """Return a monotonic function of it."""
        low, high = sorted((function(self.low), function(self.high)))
        return Ratio(function(self.value), low, high, self.steps)


def compare(a: Times, b: Times) -> Ratio:
    """Return a / b. What disturbs a round disturbs both, so ratios within rounds scatter less than the times do."""
    ratios = [seconds / b.by_round[r] for r, seconds in a.by_round.items() if r in b.by_round]
    low, high = find_quartiles(ratios)
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def interleave(
    steps: Mapping[str, Step],
    rounds: int,
    tick: Callable[[], None] = lambda: None,
) -> dict[str, Times]:
    """Time steps in rounds, one of each a round, so that whatever else the machine does meets all of them alike.

    The order is shuffled in every round (always the same way): no step has always the same one before it, which leaves
    the caches as it likes.

    Args:
      steps: what to time, by name.
      rounds: so many.
      tick: called after every round.
    """
    pause = pauses(steps, rounds)
    taken: dict[str, dict[int, float]] = {name: {} for name in steps}
    order = random.Random(0)
    gc.collect()
    gc.disable()
    try:
        for r in range(rounds):
            names = [name for name in steps if r % pause[name] == 0]
            order.shuffle(names)
            for name in names:
                taken[name][r] = timed(steps[name])
            tick()
    finally:
        gc.enable()
    return {name: spread(values) for name, values in taken.items()}


def pauses(steps: Mapping[str, Step], rounds: int) -> dict[str, int]:
    """Every which round each takes part in; also warms them up (a first step makes the state, or compiles)."""
    warm = {}
    for name, step in steps.items():
        step()
        warm[name] = min(timed(step), timed(step))  # one alone may meet an interruption
    usual = statistics.median_low(warm.values())
    most = max(1, rounds // FEWEST)
    return {name: min(most, max(1, round(t / (SLOW * usual)))) for name, t in warm.items()}


def timed(step: Step) -> float:
    begin = perf_counter()
    step()
    return perf_counter() - begin


def spread(by_round: Mapping[int, float]) -> Times:
    seconds = list(by_round.values())
    q1, q3 = find_quartiles(seconds)
    return Times(1e3 * statistics.median(seconds), 1e3 * q1, 1e3 * q3, len(seconds), by_round)


def find_quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the first and third quartile: they are among the values, or between two of them."""
    if len(values) == 1:
        return values[0], values[0]
    q1, _, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return q1, q3


def triad(repeats: int, entries: int = 2**25) -> float:
    """GB/s of ``a = b + s c`` over float32 arrays far larger than any cache, counted as STREAM does: 3 words per entry.

    The a that is written must first be read into the cache, which STREAM does not count; an update in place has no
    such hidden word, so it may pass 100 % of this.
    """
    b, c = torch.ones(entries), torch.ones(entries)
    a = torch.empty(entries).zero_()
    times = interleave({"triad": lambda: torch.add(b, c, alpha=3.0, out=a)}, repeats)
    return 3 * 4 * entries / (1e6 * times["triad"].ms)


@contextmanager
def silent_stderr() -> Iterator[None]:
    """For the profiler: its C++ announces itself, and warns of frees that it did not see allocated (not our sums)."""
    sys.stderr.flush()
    kept = os.dup(2)
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def peak_extra(step: Step) -> int:
    """The most bytes that tensors made within a step take at one time, beyond what was there before it.

    As torch's allocator reports it to the profiler, and what a call by row of the C kernel reports. The scratch of its
    other calls (one double per chunk) comes from malloc and is not included.
    """
    kernel = native.kernel()
    if kernel is not None:
        kernel.take_rows_bytes()  # of earlier steps
    with silent_stderr(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        step()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        recorded.export_chrome_trace(str(trace))
        events = json.loads(trace.read_text())["traceEvents"]
    now = peak = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: float(e["ts"])):
        now += event["args"]["Bytes"]
        peak = max(peak, now)
    return peak + (0 if kernel is None else kernel.take_rows_bytes())
