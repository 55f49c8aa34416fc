"""What a training costs at scale: bytes of optimizer state a rank holds, and bytes that a step sends.

Plain arithmetic on shapes, no torch: ``python -m acmo.scale`` prints the tables of docs/scale.md, and tests compare the
formulas with what ranks really allocate and send.
"""

from collections.abc import Sequence
from math import prod

from acmo.scopes import resolve_scope

Shape = Sequence[int]


def llama(layers: int, width: int, hidden: int, vocabulary: int, kv_width: int) -> list[Shape]:
    """The shapes of all tensors of a Llama: nine a layer, two embeddings, one norm."""
    attention = [(width, width), (kv_width, width), (kv_width, width), (width, width)]
    mlp = [(hidden, width), (hidden, width), (width, hidden)]
    layer: list[Shape] = [*attention, *mlp, (width,), (width,)]
    return [(vocabulary, width), *layer * layers, (width,), (vocabulary, width)]


MODELS: dict[str, list[Shape]] = {
    "7 B": llama(32, 4096, 11008, 32000, 4096),  # Llama 2 7B
    "70 B": llama(80, 8192, 28672, 128256, 1024),  # Llama 3.1 70B
    "405 B": llama(126, 16384, 53248, 128256, 1024),  # Llama 3.1 405B
}
RANKS = (8, 64, 256, 1024)


def shard(shape: Shape, ranks: int) -> int:
    """Entries of a tensor on the fullest of so many ranks, the first: FSDP2 cuts dimension 0, rounded up."""
    return -(-shape[0] // ranks) * prod(shape[1:]) if shape else 1


def state_bytes(
    optimizer: str, shapes: Sequence[Shape], ranks: int = 1, *, itemsize: int = 4, psi: str = "identity"
) -> int:
    """Bytes of optimizer state on the fullest rank.

    Args:
      optimizer: ``"acmo"``, ``"rowacmo"``, ``"sgd"`` (with momentum) or ``"adamw"``.
      shapes: of the parameters, whole.
      ranks: over how many ranks each is cut; of HSDP, the sharding dimension alone.
      itemsize: bytes of an entry of a moment: 4 for float32, 2 for bfloat16; 1 for RowACMo's int8, which 1-D tensors
        do not have, and which keeps a float32 scale a row.
      psi: ACMo's; ``"sqrt"`` keeps a float64 β̂ a tensor.

    Returns:
      The moments, and per tensor a float32 ``step`` (not SGD), β̂, and ACMo's float64 cache of ‖m‖² (not RowACMo).

    Example:
      >>> state_bytes("acmo", [(4, 3)]), state_bytes("adamw", [(4, 3)]), state_bytes("sgd", [(4, 3)], ranks=2)
      (60, 100, 24)
      >>> state_bytes("rowacmo", [(4, 3)]), state_bytes("rowacmo", [(4, 3)], itemsize=1)
      (52, 32)
    """
    moments, scalars = {
        "acmo": (1, 4 + 8 + (8 if psi == "sqrt" else 0)),
        "rowacmo": (1, 4),
        "sgd": (1, 0),
        "adamw": (2, 4),
    }[optimizer]
    return sum(moments * moment_bytes(shape, ranks, itemsize) + scalars for shape in shapes)


def moment_bytes(shape: Shape, ranks: int, itemsize: int) -> int:
    """Bytes of one moment on the fullest rank; with int8, of its scales as well."""
    if itemsize > 1:
        return itemsize * shard(shape, ranks)
    return shard(shape, ranks) + 4 * shard(shape[:1], ranks) if len(shape) > 1 else 4 * shard(shape, ranks)


def message_bytes(tensors: int, decayed: int = 0) -> int:
    """Bytes of the one all-reduce a step, for each mesh dimension that shards; the number of ranks plays no part.

    Args:
      tensors: how many tensors with a gradient are cut over that dimension.
      decayed: how many of them have coupled weight decay.

    Returns:
      8 per sum: ‖g‖² and ‖m‖² of each tensor, with coupled decay ‖g + λθ‖², ⟨g, θ⟩ and ‖θ‖² as well, and two
      flags, for a gradient that is not finite and for a GradScaler's overflow.

    Example:
      >>> message_bytes(tensors=291)
      4672
    """
    return 8 * (2 + 2 * tensors + 3 * decayed)


def cut_rows(shapes: Sequence[Shape], norm_scope: str = "auto") -> int:
    """How many rows, columns and whole tensors FSDP2 cuts, which is along dimension 0: rows stay whole.

    Example:
      >>> cut_rows([(64, 64), (64,), (1024, 64)]), cut_rows([(64, 64)], norm_scope="column")
      (65, 64)
    """
    kinds = [(resolve_scope(norm_scope, shape), shape) for shape in shapes]
    return sum({"row": 0, "column": shape[-1], "whole": 1}[kind] for kind, shape in kinds)


def row_message_bytes(rows: int, decayed: int = 0, *, flags: bool = False) -> int:
    """Bytes of the one all-reduce a step of RowACMo, for each mesh dimension that cuts rows; no rows, no message.

    Args:
      rows: how many rows, columns and 1-D tensors are cut over that dimension; FSDP2 leaves rows whole.
      decayed: how many of them have coupled weight decay.
      flags: whether a GradScaler or ``nonfinite="raise"`` has the ranks agree first.

    Returns:
      8 a sum: ‖g‖², ‖m‖² and ⟨g, m⟩ of each row, with coupled decay ‖g + λθ‖² as well, and two flags.

    Example:
      >>> row_message_bytes(rows=4096), row_message_bytes(0, flags=True)
      (98304, 16)
    """
    return 8 * (3 * rows + decayed + (2 if flags else 0))


def spectral_bytes(shapes: Sequence[Shape], ranks: int, itemsize: int = 4) -> int:
    """Bytes that the fullest rank sends to have its matrices orthogonalised, and sends or receives as results.

    Args:
      shapes: of the spectral matrices.
      ranks: over how many ranks FSDP2 cuts each.
      itemsize: 4 for float32; 2 for bfloat16, which GPUs multiply in.

    Returns:
      Its own shard of every matrix, once. The chosen ranks send as much back, together.

    Example:
      >>> spectral_bytes([(4096, 4096), (11008, 4096)], ranks=8, itemsize=2)
      15466496
    """
    return itemsize * sum(shard(shape, ranks) for shape in shapes)


def gathered_bytes(groups: int) -> int:
    """Bytes that a rank of a ``process_group`` gives to the one all-gather a step: 11 numbers per parameter group."""
    return 8 * 11 * groups


def tables() -> str:
    """The tables of docs/scale.md, as Markdown."""
    head = "| parameters | ranks | ACMo, RowACMo | m in bf16 | RowACMo, m in int8 | SGD-momentum | AdamW |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|"]
    for name, shapes in MODELS.items():
        for ranks in RANKS:
            cells = (
                size(state_bytes(optimizer, shapes, ranks, itemsize=itemsize))
                for optimizer, itemsize in (("acmo", 4), ("acmo", 2), ("rowacmo", 1), ("sgd", 4), ("adamw", 4))
            )
            lines.append(f"| {name} | {ranks:,} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "| parameters | tensors | message | with coupled decay on all | gradients that FSDP2 sends (bf16) |",
    ]
    lines += ["|---|---:|---:|---:|---:|"]
    for name, shapes in MODELS.items():
        n, gradients = len(shapes), 2 * sum(map(prod, shapes))
        cells = (size(x) for x in (message_bytes(n), message_bytes(n, decayed=n), gradients))
        lines.append(f"| {name} | {n:,} | " + " | ".join(cells) + " |")
    lines += ["", "| RowACMo, parameters | tables by row: rows cut | message | tables by column: rows cut | message |"]
    lines += ["|---|---:|---:|---:|---:|"]
    for name, shapes in MODELS.items():
        tables, rest = [shapes[0], shapes[-1]], shapes[1:-1]
        counts = [cut_rows(rest, "row") + cut_rows(tables, scope) for scope in ("row", "column")]
        cells = (f"{rows:,} | {size(row_message_bytes(rows))}" for rows in counts)
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def size(count: float) -> str:
    """Three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            break
        count, unit = count / 1000, {"B": "kB", "kB": "MB", "MB": "GB", "GB": "TB"}[unit]
    return f"{count:.3g} {unit}"


if __name__ == "__main__":
    print(tables())
