"""What the fused step must reach on 2 threads in float32, and whether a run did."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from acmo.bench.contenders import ADAMW, ADAMW_CLIPPED, CLIPPED, FUSED, PLAIN, ROWS, ROWS_INT8, SGD
from acmo.bench.measure import Ratio
from acmo.bench.run import SetResult

THREADS = 2
LINEAR, HALF = "100 M / (4 x 25 M), one tensor", "bfloat16 / float32 on Transformer-base"
FEWEST_STEPS = 10
# Of RowACMo, over fused SGD-momentum and over fused AdamW; a table by column is read twice.
ROW_TARGETS = {"resnet50": (1.05, 0.80), "10000x10000": (1.05, 0.80), "transformer": (1.18, 0.90), "gpt2": (1.18, 0.90)}
ROW_MEGABYTES = 1.0  # that a step by row may take while it lasts


@dataclass(frozen=True)
class Verdict:
    """A bound, and the number that was measured.

    ``met`` is None where nothing was measured, where too few steps were, and where the bound lies between the quartiles
    ``low`` and ``high``: then the next run may well say the opposite.
    """

    where: str
    what: str
    value: float | None
    least: float | None = None
    most: float | None = None
    low: float | None = None  # None: the value does not scatter
    high: float | None = None
    steps: int = FEWEST_STEPS

    @property
    def met(self) -> bool | None:
        return {"met": True, "NOT met": False}.get(self.said)

    @property
    def said(self) -> str:
        """The verdict in words."""
        if self.value is None:
            return "not measured"
        if self.steps < FEWEST_STEPS:
            return f"no verdict: {self.steps} steps"
        low, high = self.value if self.low is None else self.low, self.value if self.high is None else self.high
        if len({self._side(x) for x in (low, self.value, high)}) > 1:
            return f"no verdict: quartiles {low:.2f}–{high:.2f}"
        return "met" if self._side(self.value) == 0 else "NOT met"

    def _side(self, x: float) -> int:
        """Return 0 within the bounds, −1 below, 1 above."""
        below, above = self.least is not None and x < self.least, self.most is not None and x > self.most
        return int(above) - int(below)


def judge(where: str, what: str, ratio: Ratio | None, least: float | None = None, most: float | None = None) -> Verdict:
    """Return the verdict on a ratio."""
    if ratio is None:
        return Verdict(where, what, None, least, most)
    return Verdict(where, what, ratio.value, least, most, ratio.low, ratio.high, ratio.steps)


def verdicts(results: Sequence[SetResult], pairs: Mapping[str, Ratio | None]) -> list[Verdict]:
    """A verdict for every target of the sets that were measured, and of the two comparisons."""
    found = [verdict for result in results for verdict in (*of_set(result), *of_rows(result))]
    found.append(judge("ACMo fused", HALF, pairs.get(HALF), most=0.6))
    found.append(judge("ACMo fused", LINEAR, pairs.get(LINEAR), least=0.85, most=1.15))
    return found


def of_set(result: SetResult) -> Iterator[Verdict]:
    """What ACMo must reach."""
    sgd, adamw, clip = (1.20, 0.85, 0.55) if result.large else (1.5, 1.2, 0.8)
    where = result.label
    yield judge(where, "ACMo fused / SGD-momentum fused", result.compare(FUSED, SGD), most=sgd)
    yield judge(where, "ACMo fused / AdamW fused", result.compare(FUSED, ADAMW), most=adamw)
    clipped = result.compare(CLIPPED, ADAMW_CLIPPED)
    yield judge(where, "with max_grad_norm / (AdamW fused + clip_grad_norm_)", clipped, most=clip)
    if result.large:
        both = [ratio for name in (PLAIN, SGD) if (ratio := result.compare(FUSED, name)) is not None]
        slowest = max(both, key=lambda ratio: ratio.value, default=None)  # over the faster of the two
        percent = None if slowest is None else slowest.convert(lambda ratio: 100 * 6 / 5 / ratio)
        yield judge(where, "% of the plain update's bandwidth", percent, least=90.0)


def of_rows(result: SetResult) -> Iterator[Verdict]:
    """What RowACMo must reach."""
    where = result.label
    if result.key in ROW_TARGETS:
        sgd, adamw = ROW_TARGETS[result.key]
        yield judge(where, "RowACMo fused / SGD-momentum fused", result.compare(ROWS, SGD), most=sgd)
        yield judge(where, "RowACMo fused / AdamW fused", result.compare(ROWS, ADAMW), most=adamw)
        yield judge(where, "RowACMo, int8 moments / float32 moments", result.compare(ROWS_INT8, ROWS), most=1.05)
    if not result.large:
        yield judge(where, "RowACMo fused / ACMo fused", result.compare(ROWS, FUSED), most=1.0)
    peaks = [row.peak_bytes / 1e6 for name in (ROWS, ROWS_INT8) if (row := result.row(name)) is not None]
    yield Verdict(where, "peak MB of a step of RowACMo", max(peaks, default=None), most=ROW_MEGABYTES)
