"""Losses of the final runs: training loss on the way, validation loss at the end, and steps to a training loss."""

from collections.abc import Mapping, Sequence

from acmo.lab.results import stats
from acmo.lab.results.run_record import RunRecord
from acmo.lab.results.tables import Row

SHARES = {"25": 0.25, "50": 0.5, "100": 1.0}  # of the steps, in per cent


def summarise_losses(finals: Mapping[str, Sequence[RunRecord]], baselines: Sequence[str]) -> dict[str, Row]:
    """Return by contender what its final runs' losses were; nothing where no run recorded its training loss.

    The target is a training loss that every baseline reaches on average: the worst of their means at the end.

    Args:
      finals: by contender, the runs of the chosen setting.
      baselines: those that paired differences refer to and that set the target; all contenders if none takes part.
    """
    if not any(run.train_curve for runs in finals.values() for run in runs):
        return {}
    ends = {label: {run.seed: run.training_loss() for run in runs} for label, runs in finals.items()}
    reference = [label for label in baselines if label in finals] or list(finals)
    known = {label: [x for x in ends[label].values() if x is not None] for label in reference}
    target = stats.target_score({label: values for label, values in known.items() if values}, "min")
    return {
        label: {
            "train": {name: _interval(runs, share) for name, share in SHARES.items()},
            "train_by_seed": _by_seed(ends[label]),
            "valid_by_seed": _by_seed({run.seed: run.score_on("valid", "loss") for run in runs}),
            "train_differences": {
                other: stats.paired_difference(ends[label], ends[other], "min")._asdict()
                for other in baselines
                if other in ends and other != label
            },
            "target": target,
            "to_target": stats.time_to_target([run.train_curve for run in runs], target, "min")._asdict(),
        }
        for label, runs in finals.items()
    }


def _interval(runs: Sequence[RunRecord], share: float) -> Row:
    values = [run.training_loss(share) for run in runs]
    found = stats.bootstrap_interval([value for value in values if value is not None])
    if found.low is not None and found.mean is not None and found.low < 0 <= found.mean:  # Student's t of two seeds
        found = found._replace(low=0.0)
    return found._asdict()


def _by_seed(values: Mapping[int, float | None]) -> dict[str, float]:
    return {str(seed): value for seed, value in sorted(values.items()) if value is not None}
