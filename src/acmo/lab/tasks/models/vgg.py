"""VGG16 with batch norm, for images of 32x32."""

import torch
from torch import Tensor, nn

_WIDTHS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """Thirteen convolutions, each with a batch norm, and one linear layer: 14,728,266 parameters for 10 classes.

    Reference:
      Simonyan and Zisserman, 2015; the three linear layers for 224x224 are one for 32x32, as is usual for CIFAR
    """

    def __init__(self, classes: int = 10, channels: int = 3) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for widths in _WIDTHS:
            for width in widths:
                layers += [
                    nn.Conv2d(channels, width, kernel_size=3, padding=1),
                    nn.BatchNorm2d(width),
                    nn.ReLU(inplace=True),
                ]
                channels = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(512, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images (N, channels, 32, 32)."""
        logits: Tensor = self.classifier(torch.flatten(self.features(x), 1))
        return logits
