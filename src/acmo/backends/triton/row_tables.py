"""The tables of a step by row: which program has which rows of which tensor."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from acmo.backends.triton import column_kernels, fields
from acmo.backends.triton.tables import Table, keep_for_graph, kind_of, number_entries, upload, write_columns
from acmo.rounding import rounds_randomly
from acmo.scopes import count_entries
from acmo.step_data import GroupOptions, KernelLog, Part, RowNorms

LANES = 1024  # entries of a tile: 8 per thread of 4 warps, so that several programs share a multiprocessor
SPLIT_ABOVE = 65536  # entries of a single row, beyond which several programs share it
ROW_CHUNKS = 128  # of a column, at most
ADDRESSES = (fields.PARAM, fields.MOMENT, fields.GRAD, fields.STEP, fields.SCALE)
HEIGHT, WIDTH = column_kernels.HEIGHT.value, column_kernels.WIDTH.value
Dtypes = tuple[torch.dtype, torch.dtype, torch.dtype]


class RowLaunch(NamedTuple):
    """Programs for tensors that agree in dtypes, rounding, and in whether 16 bytes can be loaded at a time."""

    dtypes: Dtypes
    random: bool
    aligned: bool
    first: int
    programs: int


class Programs:
    """A list of programs, (tensor, index within it), in launches."""

    def __init__(self) -> None:
        self.tensors: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self.indices: list[np.ndarray[tuple[int], np.dtype[np.int64]]] = []
        self.launches: list[RowLaunch] = []
        self.total = 0

    def add(self, key: tuple[Dtypes, bool, bool], j: int, count: int) -> None:
        """Add programs for a tensor; those of one launch must come one after the other."""
        if not count:
            return
        self.tensors.append(np.full(count, j, dtype=np.int64))
        self.indices.append(np.arange(count, dtype=np.int64))
        if self.launches and self.launches[-1][:3] == key:
            self.launches[-1] = self.launches[-1]._replace(programs=self.launches[-1].programs + count)
        else:
            self.launches.append(RowLaunch(*key, self.total, count))
        self.total += count

    def to(self, device: torch.device) -> Tensor:
        """Return the list as ``[2, programs]`` on a device."""
        out = torch.zeros(2, max(1, self.total), dtype=torch.int64, device=device)
        if self.total:
            upload(np.stack((np.concatenate(self.tensors), np.concatenate(self.indices))), out)
        return out


class RowTables:
    """The tables and buffers of the steps by row on one set of tensors, as they lie in memory.

    Args:
      parts: of the step.
      groups: of the optimizer.
      addresses: of θ, m, g, t and the scales of int8 moments (0 for others).
      counts: of the optimizer's steps, taken and skipped.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        groups: Sequence[GroupOptions],
        addresses: tuple[list[int], ...],
        counts: Tensor | None,
    ) -> None:
        device = parts[0].params[0].device
        self.n = n = sum(len(part.params) for part in parts)
        self.tensors = Table(n, fields.FIELDS.value, device)
        self.numbers = Table(1 + len(groups), fields.NUMBERS.value, device)
        self.units, self.directions = Table(n, 1, device), Table(n, 1, device)  # of matrices, for spectral steps
        kinds: list[tuple[Dtypes, bool]] = []
        host, j = self.tensors.host, 0
        for part in parts:
            number_entries(host[j:], part, groups[part.group])
            kinds += [(kind_of(part), rounds_randomly(part, groups[part.group]))] * len(part.params)
            for p, owner in zip(part.params, part.owners, strict=True):
                describe(host[j], part, p, owner)
                host[j, fields.GROUP.value] = part.group
                j += 1
        write_columns(self.tensors, ADDRESSES, addresses)
        aligned = self.aligned = self._find_aligned()
        keys = [(*kinds[j], bool(aligned[j])) for j in range(n)]
        self.rows, self.lines, self.updates = Programs(), Programs(), Programs()
        slots = lines = partials = 0
        for key in dict.fromkeys(keys):
            for j in [j for j in range(n) if keys[j] == key]:
                own = host[j]
                kind, rows, columns = (int(own[f.value]) for f in (fields.KIND, fields.ROWS, fields.COLUMNS))
                own[fields.FIRST_CHUNK.value] = slots
                if kind <= fields.LONG_ROW.value:
                    height = LANES // fields.TILE_WIDTHS[kind] if kind < fields.LONG_ROW.value else 1
                    count = -(-rows // height) if columns else 0
                    self.rows.add(key, j, count)
                else:
                    chunk = max(HEIGHT, -(-rows // (ROW_CHUNKS * HEIGHT)) * HEIGHT)
                    chunks, across = -(-rows // chunk), -(-columns // WIDTH)
                    own[fields.BLOCKS.value], own[fields.ROW_CHUNKS.value] = chunk, chunks
                    own[fields.FIRST_LINE.value], own[fields.FIRST_PARTIAL.value] = lines, partials
                    by_column = kind == fields.COLUMN_KIND.value
                    lines, partials = lines + columns, partials + chunks * (columns if by_column else across)
                    count = across if by_column else 1
                    self.rows.add(key, j, chunks * across)
                    self.lines.add((key[0], False, False), j, count)
                    self.updates.add(key, j, -(-rows // HEIGHT))
                own[fields.CHUNKS.value] = count
                slots += count
        self.slots, self.partial_count = max(1, slots), max(1, partials)
        self.row_owners, self.line_owners, self.update_owners = (
            programs.to(device) for programs in (self.rows, self.lines, self.updates)
        )

        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self.stats = zeros(fields.ROW_STATS.value, self.slots)
        self.partials = zeros(fields.LINE_SUMS.value, self.partial_count)
        self.coefficients = zeros(max(1, lines), fields.LINE_COEFFICIENTS.value)
        self.found = zeros(fields.ROW_STATS.value, n)
        self.report = RowNorms(*self.found.unbind())
        self.norms = zeros(5, n)
        self.flags = zeros(fields.FLAGS.value, dtype=torch.int32)
        self.counts = zeros(fields.COUNTS.value, dtype=torch.int32) if counts is None else counts
        self.log = KernelLog(self.counts, self.flags[fields.EVER_TAKEN.value])
        self.clip_scale = torch.ones(1, dtype=torch.float64, device=device)
        self.applied = zeros(1, dtype=torch.bool)
        self.applied_byte, self.applied_flag = self.applied.view(torch.int8), self.applied[0]
        self.addresses, self.launched = addresses, False
        self.row_places = tuple([(part.group, i) for part in parts for i in part.indices])

    def _find_aligned(self) -> "np.ndarray[Any, Any]":
        """Return which tensors can be loaded 16 bytes at a time, in every row."""
        host = self.tensors.host
        together = host[:, fields.PARAM.value] | host[:, fields.MOMENT.value] | host[:, fields.GRAD.value]
        aligned: np.ndarray[Any, Any] = (
            (together % 16 == 0) & (host[:, fields.COLUMNS.value] % 8 == 0) & (host[:, fields.SIZE.value] % 8 == 0)
        )
        return aligned

    def relocate(self, addresses: tuple[list[int], ...]) -> bool:
        """Take other addresses of the same tensors; return whether they are aligned alike, as the launches need."""
        if self.tensors.key is not self.addresses:  # they were never uploaded, so the key is not of the values here
            self.tensors.key = None
        write_columns(self.tensors, ADDRESSES, addresses)
        self.addresses = addresses
        return bool(np.array_equal(self._find_aligned(), self.aligned))

    def keep_record(self, before: "RowTables") -> None:
        """Take over the record of tables for the same tensors at other addresses."""
        self.found, self.report, self.norms = before.found, before.report, before.norms
        self.flags, self.log = before.flags, before.log

    def update_tensors(self) -> Tensor:
        """Return the table of tensors."""
        keep_for_graph(self, self.tensors)
        return self.tensors.device if self.tensors.has(self.addresses) else self.tensors.write(self.addresses)

    def update_numbers(self, groups: Sequence[GroupOptions]) -> Tensor:
        """Return the table of the groups' numbers."""
        return self.numbers.write_numbers(0.0, groups)


def describe(own: "np.ndarray[tuple[int], np.dtype[np.int64]]", part: Part, p: Tensor, owner: Tensor) -> None:
    """Write the shape and the kind of one tensor."""
    rows = p.shape[0] if p.ndim > 1 and part.scope != "whole" else 1
    columns = p.numel() // rows if rows else 0
    entries = count_entries(part.scope, owner.shape)
    if part.scope == "spectral":  # steps by √max(rows, columns) · O
        rows, kind = p.shape[0], fields.SPECTRAL_KIND.value
        columns = p.numel() // max(1, rows)
        entries = max(rows, columns)
    elif part.scope == "column":
        kind = fields.COLUMN_KIND.value
    elif columns <= fields.TILE_WIDTHS[-1]:
        kind = next(k for k, width in enumerate(fields.TILE_WIDTHS) if columns <= width)
    elif rows == 1 and columns > SPLIT_ABOVE and not part.moment_scales:  # a line has no scale of its own
        kind, columns = fields.SPLIT_KIND.value, fields.SPLIT_WIDTH.value
        rows = -(-p.numel() // columns)
    else:
        kind = fields.LONG_ROW.value
    own[fields.SIZE.value], own[fields.ROWS.value], own[fields.COLUMNS.value] = p.numel(), rows, columns
    own[fields.KIND.value], own[fields.ENTRIES.value] = kind, entries
