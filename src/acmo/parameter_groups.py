"""Parameter groups of a model: what is decayed, what goes by row or by column, and what is orthogonalised."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch.nn import Embedding, EmbeddingBag, Linear, Module, Parameter
from torch.nn.modules.conv import _ConvNd

from acmo.options import check_at_least, check_flag


def param_groups(
    model: Module, weight_decay: float | None = None, *, scopes: bool = False, **options: Any
) -> list[dict[str, Any]]:
    """Return parameter groups: decay for matrices and kernels, none for biases and norms; with ``scopes``, by row.

    A parameter with fewer than two dimensions is a bias or the scale of a norm layer and is not decayed; matrices,
    embeddings and convolution kernels are. Frozen parameters are left out; names are kept, so that errors and state
    dicts can name them. Tied weights come once.

    ``scopes=True`` is for `acmo.RowACMo` and `acmo.SpectralACMo`. It gives every group a ``norm_scope``: ``"column"``
    for vocabulary tables (every embedding with more rows than columns, and the input and output embeddings of a
    Hugging Face model), for the ``Linear`` that predicts such a vocabulary, and for Hugging Face's ``Conv1D``, whose
    weight is (in, out); ``"row"`` for everything else. A stack of experts, (experts, out, in), has one row per expert.
    Groups of matrices and kernels also get a ``spectral``, which only `acmo.SpectralACMo` reads: False for embeddings,
    heads and stacks, True for hidden layers. Without ``scopes`` the groups have neither, and the optimizer decides by
    shapes. That is the default because `acmo.ACMo` with its global scope refuses groups with scopes of their own.

    Args:
      model: the module whose parameters are grouped.
      weight_decay: the decay of matrices and kernels. None: the optimizer's own default.
      scopes: name the scope of each parameter from the modules.
      **options: further options for all groups, such as ``lr``.

    Example:
      >>> import torch
      >>> model = torch.nn.Sequential(torch.nn.Embedding(9, 3), torch.nn.Linear(3, 4), torch.nn.LayerNorm(4))
      >>> [(len(g["params"]), g["weight_decay"]) for g in param_groups(model, weight_decay=0.1)]
      [(2, 0.1), (3, 0.0)]
      >>> groups = param_groups(model, weight_decay=0.1, scopes=True)
      >>> [(len(g["params"]), g["norm_scope"], g.get("spectral")) for g in groups]
      [(1, 'row', True), (1, 'column', False), (3, 'row', None)]
    """
    if not isinstance(model, Module):
        raise TypeError(f"param_groups needs a torch.nn.Module, whose layers it looks at, got a {type(model).__name__}")
    check_flag("scopes", scopes)
    if weight_decay is not None:
        check_at_least("weight_decay", weight_decay)
    if scopes and "norm_scope" in options:
        raise ValueError(f"scopes=True names every norm_scope: leave out norm_scope={options['norm_scope']!r}")
    by_column = find_columns(model) if scopes else set()
    layers = find_hidden_layers(model) if scopes else set()
    kinds: list[dict[str, Any]] = [{}]
    if scopes:
        kinds = [{"norm_scope": scope, "spectral": x} for scope in ("row", "column") for x in (True, False)]
    decayed: list[list[tuple[str, Parameter]]] = [[] for _ in kinds]
    spared: list[tuple[str, Parameter]] = []
    for name, p in model.named_parameters():
        if not p.requires_grad:
            continue
        kind = {"norm_scope": "column" if p in by_column else "row", "spectral": p in layers}
        (spared if p.ndim < 2 else decayed[kinds.index(kind) if scopes else 0]).append((name, p))
    found = [
        {"params": params, **({} if weight_decay is None else {"weight_decay": float(weight_decay)}), **kind}
        for params, kind in zip(decayed, kinds, strict=True)
    ]
    found.append({"params": spared, "weight_decay": 0.0, **({"norm_scope": "row"} if scopes else {})})
    return [{**group, **options} for group in found if group["params"]]


def find_columns(model: Module) -> set[Parameter]:
    """Return the matrices of a model that go by column: vocabulary tables, heads, and weights stored (in, out)."""
    return find_vocabularies(model) | set(list_conv1d_weights(model))


def find_hidden_layers(model: Module) -> set[Parameter]:
    """Return the matrices and convolution kernels between input and output: no embeddings, heads or stacks of matrices.

    A model without embeddings ends with its last ``Linear``, the classifier.
    """
    kernels = (module._parameters.get("weight") for module in model.modules() if isinstance(module, _ConvNd))
    tables = {*list_weights(model, Embedding, EmbeddingBag), *list_model_embeddings(model)}
    outer = add_heads(model, tables) if tables else set(list(list_weights(model, Linear))[-1:])
    matrices = {p for p in model.parameters() if p.ndim == 2}
    return (matrices | {weight for weight in kernels if weight is not None}) - outer


def find_vocabularies(model: Module) -> set[Parameter]:
    """Return the vocabulary tables and heads of a model."""
    return add_heads(model, {*list_tables(model), *list_model_embeddings(model)})


def add_heads(model: Module, tables: set[Parameter]) -> set[Parameter]:
    """Return tables and the weights of the ``Linear`` layers that have as many outputs as a table has rows."""
    heads = set(list_weights(model, Linear)) - tables
    # A size that more layers than tables have is a width: a table of 512 positions beside layers with 512 outputs.
    vocabularies = Counter(table.shape[0] for table in tables)
    layers = Counter(weight.shape[0] for weight in heads)
    return tables | {head for head in heads if layers[head.shape[0]] <= vocabularies[head.shape[0]]}


def list_conv1d_weights(model: Module) -> Iterator[Parameter]:
    """Yield the weights of Hugging Face's Conv1D."""
    for module in model.modules():
        if is_conv1d(module) and (weight := get_matrix(module)) is not None:
            yield weight


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
