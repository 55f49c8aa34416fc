"""What the fused step must reach on 2 threads in float32, and whether a run did."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from acmo.bench.contenders import ADAMW_CLIPPED, CLIPPED, FUSED
from acmo.bench.run import SetResult

THREADS = 2
LINEAR, HALF = "100 M / (4 x 25 M), one tensor", "bfloat16 / float32 on Transformer-base"


@dataclass(frozen=True)
class Verdict:
    """A bound, and the number that was measured; ``met`` is None where nothing was."""

    where: str
    what: str
    value: float | None
    least: float | None = None
    most: float | None = None

    @property
    def met(self) -> bool | None:
        if self.value is None:
            return None
        above = self.least is None or self.value >= self.least
        return above and (self.most is None or self.value <= self.most)


def verdicts(results: Sequence[SetResult], pairs: Mapping[str, float | None]) -> list[Verdict]:
    """A verdict for every target of the sets that were measured, and of the two comparisons."""
    found = [verdict for result in results for verdict in of_set(result)]
    found.append(Verdict("ACMo fused", HALF, pairs.get(HALF), most=0.6))
    found.append(Verdict("ACMo fused", LINEAR, pairs.get(LINEAR), least=0.85, most=1.15))
    return found


def of_set(result: SetResult) -> Iterator[Verdict]:
    sgd, adamw, clip = (1.20, 0.85, 0.55) if result.large else (1.5, 1.2, 0.8)
    fused, clipped, other = (result.row(name) for name in (FUSED, CLIPPED, ADAMW_CLIPPED))
    yield Verdict(result.label, "ACMo fused / SGD-momentum fused", fused.to_sgd if fused else None, most=sgd)
    yield Verdict(result.label, "ACMo fused / AdamW fused", fused.to_adamw if fused else None, most=adamw)
    # Over the same batch's SGD, so that it holds across batches; within one it is the ratio of the two medians.
    ratio = clipped.to_sgd / other.to_sgd if clipped and other else None
    yield Verdict(result.label, "with max_grad_norm / (AdamW fused + clip_grad_norm_)", ratio, most=clip)
    if result.large:
        percent = fused.plain_percent if fused else None
        yield Verdict(result.label, "% of the plain update's bandwidth", percent, least=90.0)
