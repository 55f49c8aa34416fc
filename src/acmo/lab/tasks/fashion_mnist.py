"""Fashion-MNIST from its idx files: downloaded, or in a folder, gzipped or not."""

import gzip
import zlib
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from acmo.lab.errors import LabError
from acmo.lab.tasks.downloads import fetch
from acmo.lab.tasks.images import SMALL, TINY, Images

_SITE = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_PREFIX = {"train": "train", "test": "t10k"}


class FashionMNIST(Images):
    """Fashion-MNIST: 60,000 grey images of 10 kinds of clothes, 10,000 for the test; 28x28, padded to 32x32."""

    name = "fashion-mnist"
    data_folder = "fashion-mnist"
    classes = 10
    presets = MappingProxyType({"tiny": TINY, "small": SMALL})
    sizes = tuple(presets)
    mean = (0.2190,)  # of the padded images
    std = (0.3318,)
    official = MappingProxyType({"train": 60_000, "test": 10_000})
    site = _SITE
    files = MappingProxyType(
        {
            "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
            "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
            "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
        }
    )

    def prepare(self) -> None:
        """Get the data, read what is for training, and see whether the test data is there and whole."""
        super().prepare()
        self.examples("test")

    def data_files(self) -> list[Path]:
        """Return the files of images and labels, those for training first."""
        return [self._path(name) for name in self.files]

    def labels(self, split: Literal["train", "test"]) -> dict[Path, Tensor]:
        """Return the labels of a split, which are one file."""
        path = self._path(f"{_PREFIX[split]}-labels-idx1-ubyte")
        labels = read_idx(path, 1).long()
        if len(labels) == 0 or int(labels.max()) >= self.classes:
            raise LabError(f"{path} is damaged: it has no labels, or one that is no class of {self.name}")
        return {path: labels}

    def examples(self, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Return images (N, 1, 32, 32) of bytes, and labels."""
        images = read_idx(self._path(f"{_PREFIX[split]}-images-idx3-ubyte"), 3)
        (labels,) = self.labels(split).values()
        if images.shape[1:] != (28, 28) or len(images) != len(labels):
            raise LabError(f"the {split} data of {self.name} is damaged: {tuple(images.shape)}, {len(labels)} labels")
        images = pad(images, [2] * 4).unsqueeze(1)
        return self.limited(images, labels) if split == "train" else (images, labels)

    def _path(self, name: str) -> Path:
        if self.data is None:
            return fetch(f"{self.site}/{name}.gz", self.files[name])
        for folder in (self.data, self.data / self.name):
            for path in (folder / name, folder / f"{name}.gz"):
                if path.is_file():
                    return path
        raise LabError(f"{self.data} has no {self.name} with {name} (or {name}.gz) in it")


def read_idx(path: Path, dimensions: int) -> Tensor:
    """Read an idx file of bytes: 0, 0, 8, the number of dimensions; each of them in 4 bytes, big-endian; the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, OSError, zlib.error) as error:
        raise LabError(f"{path} is damaged: {error}") from error
    start = 4 + 4 * dimensions
    shape = np.frombuffer(content[4:start], dtype=">u4").astype(int).tolist()
    if content[:4] != bytes([0, 0, 8, dimensions]) or len(shape) < dimensions or len(content) != start + np.prod(shape):
        raise LabError(f"{path} is damaged: it is not an idx file of {dimensions} dimensions, or cut short")
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8, offset=start).copy()).view(shape)
