"""What the paper reports, read off the authors' figures, and which of our comparisons repeat it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

# Test accuracy in per cent, each optimizer at its own best weight decay.
_CIFAR10 = {
    "vgg16": {
        "acmo": 94.0, "padam": 93.7, "adabound": 93.6, "sgd-momentum": 93.2, "adamw": 92.6,
        "adam": 92.5, "amsgrad": 92.5,
    },
    "resnet50": {
        "adabound": 95.3, "sgd-momentum": 94.9, "acmo": 94.8, "padam": 94.8, "adamw": 93.8,
        "amsgrad": 93.5, "adam": 93.0,
    },
    "densenet121": {
        "sgd-momentum": 95.3, "acmo": 95.2, "padam": 95.1, "adabound": 95.1, "amsgrad": 94.4,
        "adamw": 94.1, "adam": 93.8,
    },
}  # fmt: skip
# BLEU after 300 k steps.
_WMT14 = {
    "amsgrad": 25.8, "adamw": 25.7, "adam": 25.6, "adabound": 25.4, "padam": 25.4, "acmo": 25.4, "sgd-momentum": 25.0,
}  # fmt: skip
_OVERRIDES = ("epochs", "steps", "batch_size", "schedule")


class Original(NamedTuple):
    """An experiment of the paper: its figure, and by optimizer its final value (accuracy in per cent)."""

    figure: int
    finals: Mapping[str, float]


def original(plan: Mapping[str, Any], task: str) -> Original | None:
    """Return the paper's experiment that a task of a comparison repeats; None if it is ours, or cut short.

    Example:
      >>> original({"protocol": "tuned-wd"}, "cifar10:paper/vgg16").finals["acmo"]
      94.0
      >>> original({"protocol": "tuned-wd"}, "cifar10:tiny/vgg16") is None
      True
    """
    data, _, rest = task.partition(":")
    size, _, net = rest.partition("/")
    if size != "paper" or any(plan.get(option) is not None for option in _OVERRIDES):
        return None
    protocol = plan.get("protocol")
    if data == "cifar100" and protocol == "fixed-wd":
        return Original(2, {})  # no final values were read off that figure
    if data == "cifar10" and protocol == "tuned-wd":
        return Original(3, _CIFAR10.get(net, {}))
    return Original(4, _WMT14) if data == "wmt14-ende" else None
