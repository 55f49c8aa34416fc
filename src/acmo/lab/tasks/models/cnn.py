"""A small convolutional net for images of 8x8."""

from torch import nn


class DigitsCNN(nn.Sequential):
    """Two convolutions and a linear layer: 6,090 parameters, no batch norm."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__(
            nn.Conv2d(1, 16, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, kernel_size=3, padding=1),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 2 * 2, classes),
        )
