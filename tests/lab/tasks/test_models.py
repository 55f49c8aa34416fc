"""The paper's nets, to the parameter; all nets learn."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from acmo.lab.tasks.models import NETS
from acmo.lab.tasks.models.cnn import DigitsCNN


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("net", "count", "features"),
    [
        ("vgg16", 14_728_266, 512),
        ("resnet50", 23_520_842, 2048),
        ("densenet121", 6_956_298, 1024),
        ("resnet20", 272_474, 64),
        ("resnet8", 78_042, 64),
    ],
)
def test_a_net_has_the_parameters_that_it_should(net, count, features):
    assert parameters(NETS[net](10)) == count
    assert parameters(NETS[net](100)) == count + 90 * (features + 1)


def test_the_net_for_digits_is_small_and_without_batch_norm():
    model = DigitsCNN()
    assert parameters(model) == 6_090
    assert not any(isinstance(module, torch.nn.BatchNorm2d) for module in model.modules())


@pytest.mark.parametrize("net", sorted(NETS))
def test_net_passes_gradients_to_every_parameter(net):
    channels, classes = (1, 10) if net.startswith("resnet") else (3, 100)
    model = NETS[net](classes, channels)
    logits = model(torch.randn(2, channels, 32, 32))
    assert logits.shape == (2, classes)
    cross_entropy(logits, torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and bool(p.grad.ne(0).any()) for p in model.parameters())


def test_a_net_is_the_same_for_the_same_seed():
    def make() -> list[torch.Tensor]:
        torch.manual_seed(3)
        return list(NETS["resnet8"]().parameters())

    assert all(torch.equal(a, b) for a, b in zip(make(), make(), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("net", sorted(NETS))
def test_a_net_learns_eight_images_by_heart(net):
    torch.manual_seed(0)
    model = NETS[net](4)
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8) % 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for _ in range(100):  # 40 are not enough for resnet50 on every CPU
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        if float(loss.detach()) < 0.05:
            return
        loss.backward()
        optimizer.step()
    pytest.fail(f"the loss is still {float(loss.detach()):.3f}")
