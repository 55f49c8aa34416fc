"""What a training costs at scale: bytes of optimizer state a rank holds, and bytes that a step of ACMo sends.

Plain arithmetic on shapes, no torch: ``python -m acmo.scale`` prints the tables of docs/scale.md, and tests compare the
formulas with what ranks really allocate and send.
"""

from collections.abc import Sequence
from math import prod

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
      optimizer: ``"acmo"``, ``"sgd"`` (with momentum) or ``"adamw"``.
      shapes: of the parameters, whole.
      ranks: over how many ranks each is cut; of HSDP, the sharding dimension alone.
      itemsize: bytes of an entry of a moment: 4 for float32, 2 for bfloat16.
      psi: ACMo's; ``"sqrt"`` keeps a float64 β̂ a tensor.

    Returns:
      The moments, and per tensor a float32 ``step`` (not SGD), β̂, and ACMo's float64 cache of ‖m‖².

    Example:
      >>> state_bytes("acmo", [(4, 3)]), state_bytes("adamw", [(4, 3)]), state_bytes("sgd", [(4, 3)], ranks=2)
      (60, 100, 24)
    """
    moments, scalars = {
        "acmo": (1, 4 + 8 + (8 if psi == "sqrt" else 0)),
        "sgd": (1, 0),
        "adamw": (2, 4),
    }[optimizer]
    return sum(moments * itemsize * shard(shape, ranks) + scalars for shape in shapes)


def message_bytes(tensors: int, decayed: int = 0) -> int:
    """Bytes of the one all-reduce a step, for each mesh dimension that shards; the number of ranks plays no part.

    Args:
      tensors: how many tensors with a gradient are cut over that dimension.
      decayed: how many of them have coupled weight decay.

    Returns:
      8 a sum: ‖g‖² and ‖m‖² of each tensor, with coupled decay ‖g + λθ‖², ⟨g, θ⟩ and ‖θ‖² as well, and two that
      tell the others of a gradient that is not finite and of a GradScaler's overflow.

    Example:
      >>> message_bytes(tensors=291)
      4672
    """
    return 8 * (2 + 2 * tensors + 3 * decayed)


def gathered_bytes(groups: int) -> int:
    """Bytes that a rank of a ``process_group`` gives to the one all-gather a step: nine numbers a parameter group."""
    return 8 * 9 * groups


def tables() -> str:
    """The tables of docs/scale.md, as Markdown."""
    head = "| parameters | ranks | ACMo | ACMo, m in bf16 | SGD-momentum | AdamW | ACMo saves against AdamW |"
    lines = [head, "|---|---:|---:|---:|---:|---:|---:|"]
    for name, shapes in MODELS.items():
        for ranks in RANKS:
            ours, half, sgd, adamw = (
                state_bytes(optimizer, shapes, ranks, itemsize=itemsize)
                for optimizer, itemsize in (("acmo", 4), ("acmo", 2), ("sgd", 4), ("adamw", 4))
            )
            cells = (size(x) for x in (ours, half, sgd, adamw, adamw - ours))
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
