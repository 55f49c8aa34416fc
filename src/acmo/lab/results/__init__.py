"""Reading what the lab has written, and the statistics of it."""

from acmo.lab.results.comparison_folder import Comparison, load

__all__ = ["Comparison", "load"]
