"""The nets of the paper's image experiments, and smaller ones; written out, since torchvision is not a dependency."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from torch import nn

from acmo.lab.tasks.models.densenet import DenseNet121
from acmo.lab.tasks.models.resnet import resnet8, resnet20, resnet50
from acmo.lab.tasks.models.vgg import VGG16

# For images of 32x32; called with the number of classes and of channels.
NETS: Mapping[str, Callable[..., nn.Module]] = MappingProxyType(
    {"vgg16": VGG16, "resnet50": resnet50, "densenet121": DenseNet121, "resnet20": resnet20, "resnet8": resnet8}
)
