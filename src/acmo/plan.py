"""A group's lists as the last step left them: what lets the next step go without a look at every single state."""

from itertools import repeat
from operator import attrgetter, is_, is_not
from types import ModuleType
from typing import Any

from torch import Tensor

from acmo import fused
from acmo.parts import Part, device_of, dtype_of

grad_of, version_of, is_sparse = attrgetter("grad"), attrgetter("_version"), attrgetter("is_sparse")


class Plan:
    """A group in which every parameter had a gradient and all were alike, whole and real, under Ψ = identity."""

    def __init__(self, part: Part) -> None:
        self._moments, self._moment_sqs, self._steps = part.moments, part.moment_sqs, part.steps
        self._indices = tuple(part.indices)
        self._versions = list(map(version_of, part.moments))
        self._device, self._dtype = {part.params[0].device}, {part.params[0].dtype}
        self._moment_device, self._moment_dtype = {part.moments[0].device}, {part.moments[0].dtype}

    @staticmethod
    def serves(part: Part, group: dict[str, Any], backend: ModuleType) -> bool:
        """Whether the group is one such part, and the kernel serves: the others count m's versions up at every step."""
        return (
            backend is fused
            and len(part.params) == len(group["params"])
            and not part.shards
            and not part.beta_hats
            and part.params[0] is group["params"][0]  # a complex parameter's part has a view of it
        )

    def part(self, group: int, options: dict[str, Any], state: dict[Tensor, Any]) -> Part | None:
        """The group's part in this step; None unless all is as it was, and every parameter has a dense gradient again.

        Loops that run in C: with a thousand small tensors this is a good part of a step.
        """
        params: list[Tensor] = options["params"]
        grads = list(map(grad_of, params))
        states: list[Any] = list(map(state.get, params))
        try:
            holds = (
                len(params) == len(self._moments)
                and options["psi"] == "identity"
                and all(map(is_not, grads, repeat(None)))
                and all(map(is_, [s["momentum_buffer"] for s in states], self._moments))
                and all(map(is_, [s["step"] for s in states], self._steps))
                and list(map(version_of, self._moments)) == self._versions
                and set(map(device_of, params)) == self._device
                and set(map(dtype_of, params)) == self._dtype
                and set(map(device_of, self._moments)) == self._moment_device  # m.data = … leaves identity and version
                and set(map(dtype_of, self._moments)) == self._moment_dtype
                and not any(map(is_sparse, grads))
            )
        except (KeyError, TypeError):  # no state, or not all of it
            return None
        return (
            Part(group, self._indices, params, grads, self._moments, self._moment_sqs, self._steps, [])
            if holds
            else None
        )
