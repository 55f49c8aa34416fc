"""Build an optimizer from its name and its settings: one of the registry, or one of the user's own."""

import inspect
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from acmo.lab.errors import LabError
from acmo.lab.objects import load_object, nearest
from acmo.rivals import REGISTRY

if TYPE_CHECKING:  # torch takes seconds to import, and grids are read where nothing is trained
    from torch import nn
    from torch.optim import Optimizer


def build(name: str, settings: Mapping[str, Any], model: "nn.Module") -> "Optimizer":
    """Return the optimizer of the model's trainable parameters; what is wrong with a setting is a `LabError`.

    Args:
      name: of `acmo.rivals.REGISTRY`, or ``module:Class``, or ``path/to/file.py:Class``.
      settings: options; a list stands for a tuple, the name of a dtype for the dtype.
      model: frozen parameters do not reach the optimizer.
    """
    from torch.optim import Optimizer

    options = {key: _value(key, value) for key, value in settings.items()}
    factory = find_factory(name)
    known = options_of(name)
    for key in options:
        if known is not None and key not in known:
            raise LabError(f"{name} has no option {key!r}{nearest(key, known)} (it has: {', '.join(known)})")
    wrong = _find_wrong_kind(name, settings)
    if wrong is not None and name in REGISTRY:
        raise LabError(wrong)
    try:
        if name in REGISTRY:
            optimizer = REGISTRY[name].build_for(model, **options)
        else:
            optimizer = factory([p for p in model.parameters() if p.requires_grad], **options)
    except Exception as error:  # whatever one of the user's own raises
        raise LabError(wrong or f"{name} cannot be made with {dict(settings)}: {error}") from error
    if not isinstance(optimizer, Optimizer):
        raise LabError(f"{name} makes a {type(optimizer).__name__}, which is not a torch.optim.Optimizer")
    return optimizer


def find_factory(name: str) -> Any:
    """Return the function or class that builds the optimizer called ``name``."""
    if name in REGISTRY:
        return REGISTRY[name].build
    if ":" in name:
        return load_object(name)
    raise LabError(
        f"there is no optimizer {name!r}{nearest(name, REGISTRY)} "
        f"(there are: {', '.join(REGISTRY)}; one of your own is module:Class)"
    )


def required_schedule(name: str) -> str | None:
    """Return the only schedule that fits an optimizer; None if any does."""
    return REGISTRY[name].schedule if name in REGISTRY else None


def state_bytes(optimizer: "Optimizer") -> int:
    """Return how many bytes the optimizer keeps beside the parameters."""
    import torch

    tensors = (value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value))
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@cache
def options_of(name: str) -> list[str] | None:
    """Return the names of an optimizer's options; None where it takes any."""
    try:
        target = REGISTRY[name].optimizer if name in REGISTRY else find_factory(name)
    except ImportError as error:
        raise LabError(str(error)) from error
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):
        return None
    if [p for p in parameters.values() if p.kind is p.VAR_KEYWORD]:
        return None
    return [key for key in parameters if key != "params"]


def _find_wrong_kind(name: str, settings: Mapping[str, Any]) -> str | None:
    """Return a sentence about a setting that is no number, or no list, where the option's default is one."""
    defaults = REGISTRY[name].defaults if name in REGISTRY else _read_defaults(find_factory(name))
    for key, value in settings.items():
        default = defaults.get(key)
        if (_is_number(default) or key == "lr") and not _is_number(value):
            return f"{name}.{key} must be a number, got {value!r}"
        if isinstance(default, tuple) and not isinstance(value, list | tuple):
            return f"{name}.{key} must be a list such as {list(default)}, got {value!r}"
    return None


def _read_defaults(factory: Any) -> dict[str, Any]:
    try:
        return {key: parameter.default for key, parameter in inspect.signature(factory).parameters.items()}
    except (TypeError, ValueError):
        return {}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _value(key: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if key.endswith("dtype") and isinstance(value, str):
        import torch

        dtype = getattr(torch, value, None)
        if not isinstance(dtype, torch.dtype):
            raise LabError(f"{key} {value!r} is no dtype of torch, such as bfloat16")
        return dtype
    return value
