"""The examples in docstrings are what the code does."""

import doctest
import importlib

import pytest

MODULES = [
    "iterate_sampler",
    "optimizer",
    "row_acmo",
    "scopes",
    "parameter_groups",
    "projections",
    "scale",
    "theory.bounds",
    "theory.rows",
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_hold(name):
    result = doctest.testmod(importlib.import_module(f"acmo.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
