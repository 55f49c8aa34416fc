"""Residual nets for images of 32x32: ResNet50 with a CIFAR stem, ResNet-20, and a small one for minutes on a core."""

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

conv3x3 = partial(nn.Conv2d, kernel_size=3, padding=1, bias=False)
conv1x1 = partial(nn.Conv2d, kernel_size=1, bias=False)


class Basic(nn.Module):
    """Two 3x3 convolutions around which the input goes as well."""

    expansion = 1

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv3x3(before, width, stride=stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            conv3x3(width, width),
            nn.BatchNorm2d(width),
        )
        self.shortcut = _shortcut(before, width, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions around which the input goes as well; the stride is in the 3x3."""

    expansion = 4

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv1x1(before, width),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            conv3x3(width, width, stride=stride),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            conv1x1(width, 4 * width),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = _shortcut(before, 4 * width, stride)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.relu(self.body(x) + self.shortcut(x))
        return y


class ResNet(nn.Module):
    """A residual net.

    Args:
      block: what it is built of.
      depths: blocks in each stage; every stage but the first halves the resolution.
      widths: of each stage.
      classes: how many.
      channels: of an image.
      stem_stride: 2 halves the resolution at once, and quarters the work.
    """

    def __init__(
        self,
        block: type[Basic] | type[Bottleneck],
        depths: Sequence[int],
        widths: Sequence[int],
        classes: int = 10,
        channels: int = 3,
        stem_stride: int = 1,
    ) -> None:
        super().__init__()
        before = widths[0]
        self.stem = nn.Sequential(
            conv3x3(channels, before, stride=stem_stride), nn.BatchNorm2d(before), nn.ReLU(inplace=True)
        )
        stages = []
        for k, (depth, width) in enumerate(zip(depths, widths, strict=True)):
            blocks = []
            for i in range(depth):
                blocks.append(block(before, width, stride=2 if k > 0 and i == 0 else 1))
                before = width * block.expansion
            stages.append(nn.Sequential(*blocks))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (N, channels, 32, 32)."""
        logits: Tensor = self.head(self.stages(self.stem(x)))
        return logits


def resnet50(classes: int = 10, channels: int = 3) -> ResNet:
    """Return ResNet50 with a stem for 32x32 (3x3, stride 1, no pooling): 23,520,842 parameters for 10 classes.

    Reference:
      He et al., 2016
    """
    return ResNet(Bottleneck, (3, 4, 6, 3), (64, 128, 256, 512), classes, channels)


def resnet20(classes: int = 10, channels: int = 3) -> ResNet:
    """Return ResNet-20 of the CIFAR experiments, with 1x1 convolutions on its two shortcuts: 272,474 parameters.

    Reference:
      He et al., 2016, section 4.2
    """
    return ResNet(Basic, (3, 3, 3), (16, 32, 64), classes, channels)


def resnet8(classes: int = 10, channels: int = 3) -> ResNet:
    """Return a net of one block per stage behind a stem of stride 2, with 75 thousand parameters, for quick runs."""
    return ResNet(Basic, (1, 1, 1), (16, 32, 64), classes, channels, stem_stride=2)


def _shortcut(before: int, after: int, stride: int) -> nn.Module:
    if before == after and stride == 1:
        return nn.Identity()
    return nn.Sequential(conv1x1(before, after, stride=stride), nn.BatchNorm2d(after))
