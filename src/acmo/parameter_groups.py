"""Parameter groups of a model: what is decayed, and what goes by row or by column."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch.nn import Embedding, EmbeddingBag, Linear, Module, Parameter

from acmo.options import check_flag


def param_groups(
    model: Module, weight_decay: float = 0.0, *, scopes: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """Return parameter groups: decay for matrices and kernels, none for biases and norms; with ``scopes``, by row.

    A parameter with fewer than two dimensions is a bias or the scale of a norm layer and is not decayed; matrices,
    embeddings and convolution kernels are. Frozen parameters are left out; names are kept, so that errors and state
    dicts can name them. Tied weights come once.

    ``scopes=True`` is for `acmo.RowACMo`. It gives every group a ``norm_scope``: ``"column"`` for vocabulary tables
    (every embedding with more rows than columns, and the input and output embeddings of a Hugging Face model), for the
    ``Linear`` that predicts such a vocabulary, and for Hugging Face's ``Conv1D``, whose weight is (in, out); ``"row"``
    for everything else. A stack of experts, (experts, out, in), has one row per expert. Without ``scopes`` the groups
    have no ``norm_scope``, and the optimizer's own is used.

    Args:
      model: the module whose parameters are grouped.
      weight_decay: the decay of matrices and kernels.
      scopes: name the scope of each parameter from the modules.
      **options: further options for all groups, such as ``lr``.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
      >>> [(len(g["params"]), g["weight_decay"]) for g in param_groups(model, weight_decay=0.1)]
      [(2, 0.1), (3, 0.0)]
      >>> [(len(g["params"]), g["norm_scope"]) for g in param_groups(model, weight_decay=0.1, scopes=True)]
      [(1, 'row'), (1, 'column'), (3, 'row')]
    """
    check_flag("scopes", scopes)
    if scopes and "norm_scope" in options:
        raise ValueError(f"scopes=True names every norm_scope: leave out norm_scope={options['norm_scope']!r}")
    by_column = find_columns(model) if scopes else set()
    rows: list[tuple[str, Parameter]] = []
    columns: list[tuple[str, Parameter]] = []
    spared: list[tuple[str, Parameter]] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            matrices = columns if parameter in by_column else rows
            (matrices if parameter.ndim >= 2 else spared).append((name, parameter))
    kinds = [(rows, float(weight_decay), "row"), (columns, float(weight_decay), "column"), (spared, 0.0, "row")]
    return [
        {"params": params, "weight_decay": decay, **({"norm_scope": scope} if scopes else {}), **options}
        for params, decay, scope in kinds
        if params
    ]


def find_columns(model: Module) -> set[Parameter]:
    """Return the matrices of a model that go by column: vocabulary tables, heads, and weights stored (in, out)."""
    tables = {*list_tables(model), *list_model_embeddings(model)}
    heads = set(list_weights(model, Linear)) - tables
    # A size that more layers than tables have is a width: a table of 512 positions beside layers with 512 outputs.
    vocabularies = Counter(table.shape[0] for table in tables)
    layers = Counter(weight.shape[0] for weight in heads)
    return {
        *tables,
        *(head for head in heads if layers[head.shape[0]] <= vocabularies[head.shape[0]]),
        *(weight for module in model.modules() if is_conv1d(module) and (weight := get_matrix(module)) is not None),
    }


def list_tables(model: Module) -> Iterator[Parameter]:
    """Yield the weights of embeddings with more rows than columns: not those of few positions or types."""
    for weight in list_weights(model, Embedding, EmbeddingBag):
        if weight.shape[0] > weight.shape[1]:
            yield weight


def list_model_embeddings(model: Module) -> Iterator[Parameter]:
    """Yield the input and output embeddings that the Hugging Face models in a module name."""
    for module in model.modules():
        for name in ("get_input_embeddings", "get_output_embeddings"):
            try:
                found = getattr(module, name)()
            except (AttributeError, NotImplementedError):  # not of Hugging Face, or a model without a vocabulary
                continue
            if isinstance(found, Module) and (weight := get_matrix(found)) is not None:
                yield weight


def list_weights(model: Module, *kinds: type[Module]) -> Iterator[Parameter]:
    """Yield the weights of the modules of some kinds."""
    for module in model.modules():
        if isinstance(module, kinds) and (weight := get_matrix(module)) is not None:
            yield weight


def is_conv1d(module: Module) -> bool:
    """Return whether a module is Hugging Face's Conv1D, by its class name: transformers is not imported."""
    return any(kind.__name__ == "Conv1D" for kind in type(module).__mro__) and hasattr(module, "nf")


def get_matrix(module: Module) -> Parameter | None:
    """Return a module's weight if it is a matrix, not computed from others."""
    weight = module._parameters.get("weight")
    return weight if weight is not None and weight.ndim == 2 else None
