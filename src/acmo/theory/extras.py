"""Packages that come with ``pip install acmo[lab]``: imported when used, and named when missing."""

from importlib import import_module
from typing import Any


def extra(module: str, purpose: str) -> Any:
    """The module, or an ImportError that says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise ImportError(f"{purpose} needs {package}: pip install acmo[lab]") from error
