"""Import packages of ``pip install acmo[lab]`` when they are used, and name the one that is missing."""

from importlib import import_module
from typing import Any


def import_extra(module: str, purpose: str) -> Any:
    """Import and return a module; the ImportError says what to install."""
    try:
        return import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("sklearn", "scikit-learn")
        raise ImportError(f"{purpose} needs {package}: pip install acmo[lab]") from error
