"""Image files of noise, for tests: CIFAR's binary ones and idx."""

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np


def records(labels: Sequence[int], label_bytes: int = 1, seed: int = 0) -> bytes:
    """The binary version of images of noise."""
    noise = np.random.default_rng(seed)
    pixels = noise.integers(0, 256, (len(labels), 3072), dtype=np.uint8)
    heads = [bytes([7] * (label_bytes - 1) + [label]) for label in labels]
    return b"".join(head + image.tobytes() for head, image in zip(heads, pixels, strict=True))


def idx(values: np.ndarray) -> bytes:
    """An idx file of bytes."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write_cifar10(folder: Path, images: int = 20, seed: int = 0) -> Path:
    """Five files with so many images each and one to test with 10, every class in equal shares."""
    folder.mkdir(parents=True)
    for number in range(1, 6):
        labels = [i % 10 for i in range(images)]
        (folder / f"data_batch_{number}.bin").write_bytes(records(labels, seed=seed + number))
    (folder / "test_batch.bin").write_bytes(records(range(10), seed=seed + 99))
    return folder
