"""DenseNet121 with growth 32, for images of 32x32."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

_DEPTHS = (6, 12, 24, 16)


class Dense(nn.Module):
    """A bottleneck whose output is appended to its input."""

    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(before),
            nn.ReLU(inplace=True),
            nn.Conv2d(before, 4 * growth, kernel_size=1, bias=False),
            nn.BatchNorm2d(4 * growth),
            nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, kernel_size=3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.body(x), x], 1)


class DenseNet121(nn.Module):
    """Four dense blocks with transitions that halve width and resolution: 6,956,298 parameters for 10 classes.

    Reference:
      Huang et al., 2017; with a 3x3 stem for 32x32, as is usual for CIFAR
    """

    def __init__(self, classes: int = 10, channels: int = 3, growth: int = 32) -> None:
        super().__init__()
        width = 2 * growth
        layers: list[nn.Module] = [nn.Conv2d(channels, width, kernel_size=3, padding=1, bias=False)]
        for k, depth in enumerate(_DEPTHS):
            for _ in range(depth):
                layers.append(Dense(width, growth))
                width += growth
            if k < len(_DEPTHS) - 1:
                layers += [
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                    nn.Conv2d(width, width // 2, kernel_size=1, bias=False),
                    nn.AvgPool2d(2),
                ]
                width //= 2
        layers.append(nn.BatchNorm2d(width))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (N, channels, 32, 32)."""
        logits: Tensor = self.classifier(relu(self.features(x)).mean((2, 3)))
        return logits
