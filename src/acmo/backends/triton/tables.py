"""The tables that the kernels read, as a step finds them: addresses, sizes, chunks, and the numbers of the groups.

A table is uploaded when an address, a size or a number has changed, and not otherwise. Sizes and dtypes belong to the
comparison: the allocator gives the address of a freed tensor to one of another size.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from acmo.backends.triton import fields
from acmo.rounding import find_first_index, rounds_randomly
from acmo.step_data import GroupOptions, KernelLog, Part

CHUNKS_PER_TENSOR = 1024  # at most: enough programs for any GPU, few enough for one program to add them up
FIELDS, NUMBERS = fields.FIELDS.value, fields.NUMBERS.value
captured: list[Any] = []  # what a CUDA graph reads or writes at every replay must stay where it is


class Launch(NamedTuple):
    """The chunks of the tensors that agree in the dtypes of θ, m and g and in rounding: one launch per pass."""

    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype]
    random: bool
    first_chunk: int
    chunks: int


def blocks_per_chunk(size: int, block: int) -> int:
    """Return how many blocks a chunk of a tensor has: a power of 2 that depends on this tensor alone."""
    blocks = 1
    while size > blocks * block * CHUNKS_PER_TENSOR:
        blocks *= 2
    return blocks


def is_capturing(device: torch.device) -> bool:
    """Return whether a CUDA graph is being captured on the current stream."""
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def allocate_staging(out: Tensor) -> Tensor:
    """Return memory of the host from which a table can be copied to the device without waiting."""
    return torch.empty(out.shape, dtype=out.dtype, pin_memory=out.device.type == "cuda")


def upload(host: "np.ndarray[Any, Any]", out: Tensor, staging: Tensor | None = None) -> None:
    """Copy a table to the device without waiting. A graph that is being captured repeats it, so it keeps the source."""
    source = allocate_staging(out) if staging is None else staging
    source.numpy()[...] = host
    if is_capturing(out.device):
        captured.append((source, out))
    out.copy_(source, non_blocking=True)


class Table:
    """A table on the device and its values here, which are uploaded where they have changed.

    A graph that is being captured gets a copy of its own, with the upload in it: a later step must not change what the
    graph reads. Memory of the host cannot be allocated then, so some is kept ready.
    """

    def __init__(self, rows: int, columns: int, device: torch.device) -> None:
        self.host = np.zeros((rows, columns), dtype=np.int64)
        self.device = torch.zeros(rows, columns, dtype=torch.int64, device=device)
        self.key: Any = None
        self.staging: Tensor | None = None

    def has(self, key: Any) -> bool:
        """Return whether the device has the values of this key, for this step to read."""
        return bool(key == self.key) and not is_capturing(self.device.device)

    def write(self, key: Any) -> Tensor:
        """Upload the values, and return the table to launch with."""
        if is_capturing(self.device.device):
            self.key, out, staging = None, torch.empty_like(self.device), self.staging
            self.staging = None
            upload(self.host, out, staging)
            return out
        self.key = key
        if self.staging is None and self.device.device.type == "cuda":
            self.staging = allocate_staging(self.device)
        upload(self.host, self.device)
        return self.device

    def write_numbers(self, max_norm: float, groups: Sequence[GroupOptions]) -> Tensor:
        """Return the table with the numbers of groups: floats, and the addresses of tensors that hold them."""
        device = self.device.device
        numbers = [read_numbers(group, device) for group in groups]
        key = max_norm, numbers
        if self.has(key):
            return self.device
        floats = self.host.view(np.float64)
        floats[0, 0] = max_norm
        for k, (values, lr_address, kappa_address, is_64) in enumerate(numbers):
            floats[1 + k, : len(values)] = values
            self.host[1 + k, fields.LR_ADDRESS.value] = lr_address
            self.host[1 + k, fields.KAPPA_ADDRESS.value] = kappa_address
            floats[1 + k, fields.LR_IS_64.value] = is_64
        return self.write(key)


class PassTables:
    """The tables and buffers of the steps on one set of tensors, at global, group or tensor scope.

    Args:
      parts: of the step; what is read of them here is their number, sizes and dtypes.
      groups: likewise, for their parameters without a gradient.
      block: entries of a block.
      counts: of the optimizer's steps, taken and skipped.
    """

    def __init__(self, parts: Sequence[Part], groups: Sequence[GroupOptions], block: int, counts: Tensor) -> None:
        self.counts, self.launched = counts, False
        device = parts[0].params[0].device
        self.n = n = sum(len(part.params) for part in parts)
        self.tensors = Table(n, FIELDS, device)
        self.numbers = Table(1 + len(groups), NUMBERS, device)
        self.clocks = Table(max(1, n + sum(len(group.idle_steps) for group in groups)), 2, device)
        host = self.tensors.host
        host[:, fields.SIZE.value] = [p.numel() for part in parts for p in part.params]
        host[:, fields.BLOCKS.value] = [blocks_per_chunk(int(size), block) for size in host[:, fields.SIZE.value]]
        chunk = host[:, fields.BLOCKS.value] * block
        host[:, fields.CHUNKS.value] = -(-host[:, fields.SIZE.value] // chunk)
        host[:, fields.GROUP.value] = [part.group for part in parts for _ in part.params]
        host[:, fields.ENTRIES.value] = [
            p.numel() // (2 if o.is_complex() else 1)
            for part in parts
            for p, o in zip(part.params, part.owners, strict=True)
        ]
        kinds: list[tuple[Any, bool]] = []
        for part in parts:
            random = rounds_randomly(part, groups[part.group])
            number_entries(host[len(kinds) :], part, groups[part.group])
            kinds += [(kind_of(part), random)] * len(part.params)
        self.launches: list[Launch] = []
        owners: list[int] = []
        for kind in dict.fromkeys(kinds):
            begin = len(owners)
            for j in [j for j in range(n) if kinds[j] == kind]:
                host[j, fields.FIRST_CHUNK.value] = len(owners)
                owners += [j] * int(host[j, fields.CHUNKS.value])
            if len(owners) > begin:
                self.launches.append(Launch(*kind, begin, len(owners) - begin))
        self.chunks = max(1, len(owners))
        self.owners = torch.zeros(self.chunks, dtype=torch.int64, device=device)
        if owners:
            upload(np.array(owners, dtype=np.int64), self.owners)
        self._write_groups(parts, groups)

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.partials = zeros(fields.SUMS.value, self.chunks)
        self.sums = zeros(fields.SUMS.value, n)
        self.moment_sqs = self.sums[fields.MOMENT_SQ.value]
        self.groups = zeros(len(groups), fields.GROUP_FIELDS.value)
        self.coefficients = zeros(n, fields.COEFFICIENTS.value)
        self.norms = zeros(5, n)
        self.clip_scale = torch.ones(1, dtype=torch.float64, device=device)
        self.flags = zeros(fields.FLAGS.value, dtype=torch.int32)
        self.log = KernelLog(counts, self.flags[fields.EVER_TAKEN.value])
        self.applied = zeros(1, dtype=torch.bool)
        self.applied_byte, self.applied_flag = self.applied.view(torch.int8), self.applied[0]

    def _write_groups(self, parts: Sequence[Part], groups: Sequence[GroupOptions]) -> None:
        """Write where the tensors and the clocks of each group are."""
        tensor = clock = 0
        for k, group in enumerate(groups):
            own = sum(len(part.params) for part in parts if part.group == k)
            row = self.numbers.host[1 + k]
            row[fields.FIRST_TENSOR.value], row[fields.TENSORS.value] = tensor, own
            row[fields.FIRST_CLOCK.value], row[fields.CLOCKS.value] = clock, own + len(group.idle_steps)
            tensor, clock = tensor + own, clock + own + len(group.idle_steps)

    def update_tensors(self, addresses: tuple[list[int], ...]) -> Tensor:
        """Return the table of tensors with these addresses: of θ, m, g, t, and for Ψ = sqrt β̂."""
        table = self.tensors
        keep_for_graph(self, table)
        if table.has(addresses):
            return table.device
        host = table.host
        columns = (fields.PARAM, fields.MOMENT, fields.GRAD, fields.STEP, fields.BETA_HAT)
        write_columns(table, columns, addresses)
        together = host[:, fields.PARAM.value] | host[:, fields.MOMENT.value] | host[:, fields.GRAD.value]
        host[:, fields.ALIGNED.value] = together % 16 == 0
        return table.write(addresses)

    def update_clocks(self, steps: list[int], beta_hats: list[int]) -> Tensor:
        """Return the table of the addresses of t and β̂ of every parameter that has state, group by group."""
        table, key = self.clocks, (steps, beta_hats)
        if table.has(key):
            return table.device
        table.host[: len(steps), 0] = steps
        if beta_hats:
            table.host[: len(steps), 1] = beta_hats
        return table.write(key)

    def update_numbers(self, max_norm: float, groups: Sequence[GroupOptions]) -> Tensor:
        """Return the table of the groups' numbers: floats, and the addresses of tensors that hold them."""
        return self.numbers.write_numbers(max_norm, groups)


def write_columns(table: Table, columns: Sequence[Any], values: Sequence[list[int]]) -> None:
    """Write the columns that differ from those of the table's key: usually the gradients' addresses alone."""
    known = table.key if isinstance(table.key, tuple) else ()
    for k, (column, own) in enumerate(zip(columns, values, strict=False)):
        if k >= len(known) or known[k] != own:
            table.host[:, column.value] = own if own else 0


def keep_for_graph(tables: Any, table: Table) -> None:
    """Keep tables and their buffers for as long as the process lives, if a graph is being captured that uses them."""
    if is_capturing(table.device.device):
        captured.append(tables)


Numbers = tuple[tuple[float, ...], int, int, float]


def read_numbers(group: GroupOptions, device: torch.device) -> Numbers:
    """Return a group's numbers, and the addresses of those that the device holds."""
    lr, kappa = group.lr, group.theta_factor
    sign = -1.0 if group.maximize else 1.0
    if isinstance(lr, Tensor) and lr.device == device and lr.dtype in (torch.float32, torch.float64):
        kappa_address = kappa.data_ptr() if isinstance(kappa, Tensor) else 0
        values = (0.0, group.momentum, group.delta, group.coupled_decay, 1.0, sign)
        return values, lr.data_ptr(), kappa_address, float(lr.dtype == torch.float64)
    return (float(lr), group.momentum, group.delta, group.coupled_decay, float(kappa), sign), 0, 0, 0.0


def number_entries(host: "np.ndarray[Any, Any]", part: Part, group: GroupOptions) -> None:
    """Write what keys the random bits of a part's entries, where they are rounded stochastically."""
    if rounds_randomly(part, group):
        assert group.first_number is not None
        n = len(part.params)
        host[:n, fields.NUMBER.value] = [group.first_number + i for i in part.indices]
        host[:n, fields.FIRST_INDEX.value] = [find_first_index(owner) or 0 for owner in part.owners]


def kind_of(part: Part) -> tuple[torch.dtype, torch.dtype, torch.dtype]:
    """Return the dtypes of θ, m and g."""
    return part.params[0].dtype, part.moments[0].dtype, part.grads[0].dtype
