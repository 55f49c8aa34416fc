"""Parameter groups of a model: what is decayed and what is not."""

from typing import Any

from torch.nn import Module, Parameter


def param_groups(model: Module, weight_decay: float, **options: Any) -> list[dict[str, Any]]:
    """Two parameter groups: decay for matrices and kernels, none for biases and norms.

    A parameter with fewer than two dimensions is a bias or the scale of a norm layer and is not decayed; matrices,
    embeddings and convolution kernels are. Frozen parameters are left out; names are kept, so that errors and state
    dicts can name them.

    Args:
      model: the module whose parameters are grouped.
      weight_decay: the decay of the first group.
      **options: further options for both groups, such as ``lr``.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
      >>> [(len(g["params"]), g["weight_decay"]) for g in param_groups(model, weight_decay=0.1)]
      [(1, 0.1), (3, 0.0)]
    """
    decayed: list[tuple[str, Parameter]] = []
    spared: list[tuple[str, Parameter]] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            (decayed if parameter.ndim >= 2 else spared).append((name, parameter))
    both = [(decayed, float(weight_decay)), (spared, 0.0)]
    return [{"params": params, "weight_decay": decay, **options} for params, decay in both if params]
