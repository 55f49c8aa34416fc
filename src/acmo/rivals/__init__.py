"""The optimizers that ACMo is compared with: those that torch lacks, and a registry of all."""

from acmo.rivals.adabound import AdaBound
from acmo.rivals.full_matrix_adagrad import FullMatrixAdagrad
from acmo.rivals.ndadam import NDAdam, vector_groups
from acmo.rivals.padam import PAdam
from acmo.rivals.registry import REGISTRY, Entry
from acmo.rivals.sm3 import SM3
from acmo.rivals.swats import SWATS

__all__ = ["REGISTRY", "SM3", "SWATS", "AdaBound", "Entry", "FullMatrixAdagrad", "NDAdam", "PAdam", "vector_groups"]
