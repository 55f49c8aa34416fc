"""The fixture that runs kernels in Triton's interpreter."""

from tests.support.triton_interpreter import interpreter

__all__ = ["interpreter"]
