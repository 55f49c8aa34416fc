"""The examples in the lab's docstrings are what the code does."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("name", ["config.run_options", "config.schedules", "results.tables", "tasks.augment"])
def test_examples_in_docstrings_of_the_lab_hold(name):
    result = doctest.testmod(importlib.import_module(f"acmo.lab.{name}"))
    assert result.attempted > 0
    assert result.failed == 0
