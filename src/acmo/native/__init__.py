"""The fused CPU kernel: where its library is, why it is not, and its functions.

The library (``kernel.c``, built by CMake when the package is installed) is loaded at the first call of :func:`kernel`,
never by ``import acmo``. Environment:

* ``ACMO_NATIVE=0`` turns the kernel off; every CPU step then goes to the foreach backend;
* ``ACMO_NATIVE_LIBRARY=/path/libacmo_kernel.so`` loads that file instead of the installed one.
"""

from __future__ import annotations

import ctypes
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

__all__ = ["DTYPE_CODES", "INT8_CODE", "Kernel", "kernel", "required", "why_missing"]

ABI: Final = 8
NAME: Final = "libacmo_kernel.so"
DTYPE_CODES: Final[dict[torch.dtype, int]] = {
    torch.float32: 0,
    torch.float64: 1,
    torch.bfloat16: 2,
    torch.float16: 3,
}
INT8_CODE: Final = 4  # of moments by row or column, which have a float32 scale per row of dimension 0

# None: not tried yet; a str: tried, and why it failed.
_loaded: Kernel | str | None = None


class Kernel:
    """The loaded library.

    Integers travel as ``array('q')`` and sums as ``array('d')``: an address is then one method call, and a whole call
    costs about two microseconds. All methods but :meth:`rows` accept lists as well, and copy them. The caller vouches
    for what no one can check here: that every pointer leads to that many contiguous entries of that dtype, alive until
    the call returns.

    Attributes:
      path: the file.
      isa: the instruction set in use, e.g. ``"x86-64-v3"``.
      openmp: whether the library was compiled with OpenMP; serial if not.
    """

    def __init__(self, path: str) -> None:
        _provide_openmp()
        library = ctypes.CDLL(path)
        abi = library.acmo_abi()
        if abi != ABI:
            raise OSError(f"{path} has ABI {abi}, but this version of acmo needs {ABI}: reinstall acmo")
        integer, pointer = ctypes.c_int64, ctypes.c_void_p
        library.acmo_sums.argtypes = [integer, *[pointer] * 7, integer]
        library.acmo_sums.restype = None
        library.acmo_update.argtypes = [integer, *[pointer] * 8, integer]
        library.acmo_update.restype = None
        library.acmo_step.argtypes = [pointer] * 3
        library.acmo_step.restype = integer
        self.step = library.acmo_step
        library.acmo_rows.argtypes = [*[pointer] * 4, integer]
        library.acmo_rows.restype = integer
        library.acmo_rows_bytes.restype = integer
        library.acmo_isa.restype = ctypes.c_char_p
        library.acmo_set_isa.argtypes = [ctypes.c_char_p]
        library.acmo_merge_width.restype = integer
        library.acmo_set_merge_width.argtypes = [integer]
        library.acmo_set_merge_width.restype = None
        self.path = path
        self.openmp = bool(library.acmo_openmp())
        self._library = library
        self._sums = library.acmo_sums
        self._update = library.acmo_update
        self._rows = library.acmo_rows

    @property
    def isa(self) -> str:
        name: bytes = self._library.acmo_isa()
        return name.decode()

    def set_isa(self, name: str) -> bool:
        """Use another instruction set (for tests; all give the same bits); False if this CPU or build lacks it."""
        return bool(self._library.acmo_set_isa(name.encode()))

    @property
    def merge_width(self) -> int:
        """The least width of float32 rows of which a group is updated while the next one is summed; 0 for all rows."""
        return int(self._library.acmo_merge_width())

    def set_merge_width(self, entries: int) -> None:
        """Set `merge_width` (for tests; both ways give the same bits)."""
        self._library.acmo_set_merge_width(entries)

    def rows(self, addresses: array[int], layout: array[int], numbers: array[float], table: int, threads: int) -> int:
        """Step n tensors by row, by column or whole, in place; return how many rows were skipped.

        Args:
          addresses: n each of ``data_ptr()`` of θ, of m, of a float32 step to add 1 to (0 without), of g and, if a
            moment is int8, of the float32 scales (0 for those of other dtypes).
          layout: n, then n each of: rows, columns, scope (0 row, 1 column, 2 whole), code of the dtype of θ and g, code
            of m's (``INT8_CODE`` too), entries that share a norm, flags (1 unit, 2 propagate, 4 stochastic rounding),
            which numbers to use, seed, index of the first entry.
          numbers: s, λ, β, δ, α and κ, six for each index that the layout uses.
          table: address of 11 rows of n doubles that are written: Σ‖s g‖², ΣG², ΣM², Σ‖m_t‖², NaN, rows, rows that
            took part, rows skipped, the smallest cosine between step and gradient (∞ without rows), Σ cosines, rows
            with ⟨g, m⟩ < 0. The sums are of the rows that took part.
          threads: at most so many; ``torch.get_num_threads()``. The result does not depend on it.
        """
        skipped: int = self._rows(_at(addresses), _at(layout), _at(numbers), table, threads)
        if skipped < 0:
            raise MemoryError("there is no memory for the sums of a step by row")
        return skipped

    def take_rows_bytes(self) -> int:
        """Return how many bytes the last call of `rows` in this thread worked in; 0 if there was none since."""
        return int(self._library.acmo_rows_bytes())

    def squares(self, numel: Sequence[int], dtype: Sequence[int], x: Sequence[int], threads: int) -> array[float]:
        """Pass 1 without decay: Σx² of each tensor, in double.

        Args:
          numel: entries of each tensor.
          dtype: its code in ``DTYPE_CODES``.
          x: its ``data_ptr()``.
          threads: at most so many; ``torch.get_num_threads()``. The result does not depend on it.
        """
        n = len(numel)
        numel, dtype, x = _integers(numel), _integers(dtype), _integers(x)
        xx = array("d", bytes(8 * n))
        self._sums(n, _at(numel), _at(dtype), _at(x), None, _at(xx), None, None, threads)
        return xx

    def sums(
        self, numel: Sequence[int], dtype: Sequence[int], x: Sequence[int], y: Sequence[int], threads: int
    ) -> tuple[array[float], array[float], array[float]]:
        """Pass 1 with coupled decay: Σx², Σxy, Σy² of each tensor (the last two 0 where its y is 0, a null pointer)."""
        n = len(numel)
        numel, dtype, x, y = _integers(numel), _integers(dtype), _integers(x), _integers(y)
        zeros = bytes(8 * n)
        xx, xy, yy = array("d", zeros), array("d", zeros), array("d", zeros)
        self._sums(n, _at(numel), _at(dtype), _at(x), _at(y), _at(xx), _at(xy), _at(yy), threads)
        return xx, xy, yy

    def update(
        self,
        numel: Sequence[int],
        p_dtype: Sequence[int],
        m_dtype: Sequence[int],
        p: Sequence[int],
        m: Sequence[int],
        g: Sequence[int],
        coef: Sequence[float],
        threads: int,
    ) -> array[float]:
        """Pass 2, in place: ``m' = s g + λθ + β̂ m;  θ = keep θ − α m';  m = m'``; returns Σm² of each m as stored.

        The arithmetic is in float32, or in float64 where the parameter or its m is; θ takes m' before it is rounded
        to m's dtype. The sums are the very bits that :meth:`squares` of m gives.

        Args:
          numel: entries of each tensor.
          p_dtype: code of the parameter's dtype, and of the gradient's.
          m_dtype: code of m's.
          p: the parameters' ``data_ptr()``.
          m: those of their m.
          g: those of their gradients.
          coef: 5 n numbers: s of every tensor, then every λ, every β̂, every keep, every α.
          threads: at most so many. The result does not depend on it.
        """
        n = len(numel)
        numel, p_dtype, m_dtype = _integers(numel), _integers(p_dtype), _integers(m_dtype)
        p, m, g = _integers(p), _integers(m), _integers(g)
        coef = coef if type(coef) is array else array("d", coef)
        mm = array("d", bytes(8 * n))
        self._update(n, _at(numel), _at(p_dtype), _at(m_dtype), _at(p), _at(m), _at(g), _at(coef), _at(mm), threads)
        return mm


def kernel() -> Kernel | None:
    """The kernel, loaded at the first call; None where there is none, and then :func:`why_missing` says why."""
    global _loaded
    if _loaded is None:
        _loaded = _load()
    return _loaded if isinstance(_loaded, Kernel) else None


def required() -> Kernel:
    """The kernel, or an error that says why there is none."""
    found = kernel()
    if found is None:
        raise RuntimeError(f"fused=True needs the C kernel. {why_missing()} `python -m acmo.doctor` says more.")
    return found


def why_missing() -> str | None:
    """Why :func:`kernel` is None, in one sentence; None where it is there."""
    kernel()
    return _loaded if isinstance(_loaded, str) else None


def _load() -> Kernel | str:
    if os.environ.get("ACMO_NATIVE") == "0":
        return "The environment variable ACMO_NATIVE=0 turns it off."
    path = os.environ.get("ACMO_NATIVE_LIBRARY") or _installed()
    if path is None:
        return f"{NAME} was not built: acmo was installed where no C compiler worked, or is run from its sources."
    try:
        return Kernel(path)
    except (OSError, AttributeError) as error:  # AttributeError: a library without our functions
        return f"{path} cannot be loaded: {error}."


def _installed() -> str | None:
    # An editable install keeps the library in another folder than this file; __path__ has both.
    for folder in __path__:
        path = Path(folder, NAME)
        if path.is_file():
            return str(path)
    return None


def _provide_openmp() -> None:
    """Make an OpenMP runtime visible to the library, which is not linked to one: torch's, loaded already, if it can."""
    everything = ctypes.CDLL(None)
    if hasattr(everything, "GOMP_parallel"):
        return
    candidates = [*map(str, Path(torch.__file__).parent.glob("lib/libgomp*")), "libgomp.so.1", "libomp.so"]
    for candidate in candidates:
        try:
            ctypes.CDLL(candidate, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return


def _integers(values: Sequence[int]) -> array[int]:
    return values if type(values) is array else array("q", values)


def _at(values: array[int] | array[float]) -> int:
    return values.buffer_info()[0]
