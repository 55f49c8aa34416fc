"""The measurements: all contenders on a set, in batches that fit into memory, and ACMo compared with itself twice."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from acmo import native
from acmo.bench.contenders import ADAMW, ANCHORS, COMPILED, FUSED, PLAIN, SGD, Contender, Instance, table
from acmo.bench.measure import Ratio, Times, compare, interleave, peak_extra, triad
from acmo.bench.sets import SETS, ParameterSet, single

# Words per parameter that a step may allocate while it lasts (the reference's copies): kept free by the plan.
TRANSIENT = 6


@dataclass(frozen=True)
class Row:
    """One contender on one set. Ratios are medians over rounds, with the anchors of the same batch."""

    name: str
    ms: float
    q1_ms: float
    q3_ms: float
    steps: int
    batch: int
    sgd_ms: float
    adamw_ms: float
    plain_ms: float  # the faster of the two that do it: the kernel's pass 2 and fused SGD-momentum
    to_sgd: float
    to_adamw: float
    words: float
    gb_s: float
    triad_percent: float
    plain_percent: float
    state_bytes: float  # a parameter
    peak_bytes: int


@dataclass
class SetResult:
    """A set's rows."""

    key: str
    label: str
    parameters: int
    tensors: int
    large: bool
    triad_gb_s: float
    batches: int
    rows: list[Row] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)  # who cannot run here, and why
    times: list[dict[str, Times]] = field(default_factory=list)  # of each batch

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def compare(self, name: str, other: str) -> Ratio | None:
        """Return the time of one contender over that of another; None unless a batch has both."""
        batch = next((times for times in self.times if name in times and other in times), None)
        return None if batch is None else compare(batch[name], batch[other])


def budget() -> float:
    """Bytes that a batch may take: 16 GB, less on a smaller machine."""
    try:
        return min(16e9, 0.67 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):  # not a POSIX system
        return 6e9


def plan(chosen: Sequence[Contender], parameters: int, limit: float) -> list[list[Contender]]:
    """Cut the contenders into batches that fit, the anchors being in each."""
    anchors = [c for c in chosen if c.name in ANCHORS]
    word = 4 * parameters
    base = word * (1 + TRANSIENT + sum(1 + c.moments for c in anchors))  # 1: the gradients
    batches: list[list[Contender]] = []
    free = 0.0
    for c in (c for c in chosen if c.name not in ANCHORS):
        size = word * (1 + c.moments)
        if not batches or size > free:
            batches.append([*anchors])
            free = limit - base
        batches[-1].append(c)
        free -= size
    return batches or [anchors]


def measure_set(
    which: ParameterSet,
    chosen: Sequence[Contender],
    rounds: int,
    tick: Callable[[float], None] = lambda fraction: None,
    limit: float | None = None,
) -> SetResult:
    """All chosen contenders on one set.

    Args:
      which: the set.
      chosen: the contenders, SGD and AdamW among them.
      rounds: so many in each batch.
      tick: hears what fraction is done.
      limit: bytes that a batch may take; what this machine has by default.
    """
    n, batches = which.parameters, plan(chosen, which.parameters, budget() if limit is None else limit)
    bandwidth = triad(min(rounds, 15))
    result = SetResult(which.key, which.label, n, len(which.shapes), which.large, bandwidth, len(batches))
    gradients = which.gradients()
    done = 0

    def one() -> None:
        nonlocal done
        done += 1
        tick(done / (rounds * len(batches)))

    for k, batch in enumerate(batches):
        made = {c.name: c.build(which.params(gradients)) for c in batch}
        if COMPILED in made:
            try:
                made[COMPILED].step()
            except Exception as error:  # whatever the compiler lacks, the others are worth measuring
                result.left_out[COMPILED] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                del made[COMPILED]
        times = interleave({name: made[name].step for name in made}, rounds, one)
        result.times.append(times)
        for c in batch:
            if c.name in made and (k == 0 or c.name not in ANCHORS):
                result.rows.append(row(c, c.words_on(which.shapes), made[c.name], times, k, n, bandwidth))
        made.clear()  # before the next batch is built
    return result


def row(
    c: Contender, words: float, instance: Instance, times: dict[str, Times], batch: int, n: int, bandwidth: float
) -> Row:
    own, sgd, adamw = times[c.name], times[SGD].ms, times[ADAMW].ms
    plain = min(times[name].ms for name in (PLAIN, SGD) if name in times)
    gb_s = 4 * words * n / (1e6 * own.ms)
    return Row(
        c.name,
        own.ms,
        own.q1_ms,
        own.q3_ms,
        own.steps,
        batch,
        sgd_ms=sgd,
        adamw_ms=adamw,
        plain_ms=plain,
        to_sgd=compare(own, times[SGD]).value,
        to_adamw=compare(own, times[ADAMW]).value,
        words=words,
        gb_s=gb_s,
        triad_percent=100 * gb_s / bandwidth,
        plain_percent=100 * words / own.ms * plain / 5,
        state_bytes=sum(x.numel() * x.element_size() for x in instance.state()) / n,
        peak_bytes=peak_extra(instance.step),
    )


def bfloat16(rounds: int) -> Ratio | None:
    """Time of a fused step on Transformer-base in bfloat16, over that in float32."""
    times = acmo_on({"float32": SETS["transformer"], "bfloat16": SETS["transformer"]}, rounds)
    return None if times is None else compare(times["bfloat16"], times["float32"])


def linear_cost(rounds: int) -> Ratio | None:
    """Time of a fused step on one tensor of 100 M, over four times that of 25 M."""
    times = acmo_on({"100": single(100_000_000), "25": single(25_000_000)}, rounds)
    return None if times is None else compare(times["100"], times["25"]).convert(lambda ratio: ratio / 4)


def acmo_on(sets: dict[str, ParameterSet], rounds: int) -> dict[str, Times] | None:
    """Fused ACMo on several sets, interleaved; one named after a dtype is in that dtype. None without the kernel."""
    if native.kernel() is None:
        return None
    fused = next(c for c in table() if c.name == FUSED)
    made = {}
    for name, which in sets.items():
        gradients = which.gradients(torch.bfloat16 if name == "bfloat16" else torch.float32)
        made[name] = fused.build(which.params(gradients))
    return interleave({name: instance.step for name, instance in made.items()}, rounds)
