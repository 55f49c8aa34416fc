"""CIFAR-10 and CIFAR-100 from their official *binary* versions: downloaded, or in a folder."""

from abc import abstractmethod
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from acmo.lab.errors import LabError
from acmo.lab.tasks.downloads import unpacked
from acmo.lab.tasks.images import PAPER, SMALL, TINY, Images

_PIXELS = 3 * 32 * 32


class Cifar(Images):
    """What the two have in common: a record is a label byte or two, and the planes R, G and B, row by row."""

    presets = MappingProxyType({"tiny": TINY, "small": SMALL, "paper": PAPER})
    sizes = tuple(presets)
    mean = (0.4914, 0.4822, 0.4465)
    std = (0.2470, 0.2435, 0.2616)

    official = MappingProxyType({"train": 50_000, "test": 10_000})
    url: ClassVar[str]
    md5: ClassVar[str]
    label_bytes: ClassVar[int]

    @abstractmethod
    def files(self, folder: Path, split: Literal["train", "test"]) -> list[Path]:
        """Return the files of a split, in order."""

    def data_files(self) -> list[Path]:
        """Return the binary files, those for training first."""
        folder = self.where()
        return self.files(folder, "train") + self.files(folder, "test")

    def labels(self, split: Literal["train", "test"]) -> dict[Path, Tensor]:
        """Return the labels of every file of a split; no image is looked at."""
        return {path: self._labels(path, self._read(path)) for path in self.files(self.where(), split)}

    def where(self) -> Path:
        """Return the folder with the binary files; downloads them if none was given."""
        if self.data is None:
            return unpacked(self.url, self.md5, rf"{self.data_folder}/[^/]+")
        for folder in (self.data, self.data / self.data_folder):
            if folder.is_dir() and all(path.is_file() for path in self.files(folder, "test")):
                return folder
        inside = [self.data, *self.data.glob("cifar-*")]
        pickled = any((f / "data_batch_1").exists() or (f / "train").is_file() for f in inside)
        hint = "; what is there looks like the pickled version, which is not read" if pickled else ""
        raise LabError(f"{self.data} has no {self.data_folder} with the binary version of {self.name}{hint}")

    def examples(self, split: Literal["train", "test"]) -> tuple[Tensor, Tensor]:
        """Return images (N, 3, 32, 32) of bytes, and labels."""
        read = {path: self._read(path) for path in self.files(self.where(), split)}
        labels = torch.cat([self._labels(path, records) for path, records in read.items()])
        images = torch.cat([records[:, self.label_bytes :] for records in read.values()]).reshape(-1, 3, 32, 32)
        return self.limited(images, labels) if split == "train" else (images, labels)

    def _labels(self, path: Path, records: Tensor) -> Tensor:
        labels = records[:, self.label_bytes - 1].long()  # of CIFAR-100's two the fine one
        if int(labels.max()) >= self.classes:
            raise LabError(f"{path} is damaged: a label is {int(labels.max())}, {self.name} has {self.classes} classes")
        return labels

    def _read(self, path: Path) -> Tensor:
        """Return the records of a file (N, bytes); what is not used of them is not read."""
        record = self.label_bytes + _PIXELS
        try:
            size = path.stat().st_size
            if size == 0 or size % record:
                raise LabError(f"{path} is damaged or cut short: {size} bytes are not records of {record}")
            return torch.from_numpy(np.memmap(path, np.uint8, "c")).view(-1, record)
        except OSError as error:
            raise LabError(f"{path} cannot be read: {error.strerror}") from None


class Cifar10(Cifar):
    """CIFAR-10: 50,000 colour images of 10 kinds of things, 10,000 for the test."""

    name = "cifar10"
    classes = 10
    url = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
    md5 = "c32a1d4ab5d03f1284b67883e8d87530"
    data_folder = "cifar-10-batches-bin"
    label_bytes = 1

    def files(self, folder: Path, split: Literal["train", "test"]) -> list[Path]:
        """Return five files for training, one for the test."""
        names = ["test_batch"] if split == "test" else [f"data_batch_{number}" for number in range(1, 6)]
        return [folder / f"{name}.bin" for name in names]


class Cifar100(Cifar):
    """CIFAR-100: as CIFAR-10, of 100 kinds."""

    name = "cifar100"
    classes = 100
    mean = (0.5071, 0.4866, 0.4409)
    std = (0.2673, 0.2564, 0.2762)
    url = "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz"
    md5 = "03b5dce01913d631647c71ecec9e9cb8"
    data_folder = "cifar-100-binary"
    label_bytes = 2

    def files(self, folder: Path, split: Literal["train", "test"]) -> list[Path]:
        """Return one file per split."""
        return [folder / f"{split}.bin"]
