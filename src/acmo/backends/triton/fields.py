"""The columns of the tables that the kernels read: one row of int64 per tensor, one row of float64 per group."""

import triton.language as tl

# Of a tensor. Addresses are numbers: one table holds all tensors of a step, whatever their dtypes.
PARAM = tl.constexpr(0)
MOMENT = tl.constexpr(1)
GRAD = tl.constexpr(2)
SIZE = tl.constexpr(3)  # entries in memory
BLOCKS = tl.constexpr(4)  # of a chunk
FIRST_CHUNK = tl.constexpr(5)
CHUNKS = tl.constexpr(6)
GROUP = tl.constexpr(7)
ALIGNED = tl.constexpr(8)  # 1: all three addresses are multiples of 16 bytes
STEP = tl.constexpr(9)  # address of t
BETA_HAT = tl.constexpr(10)  # address of the β̂ that Ψ = sqrt compares with, or 0
ENTRIES = tl.constexpr(11)  # n of the unit step: complex numbers count once
NUMBER = tl.constexpr(12)  # of the parameter, for the random bits of stochastic rounding
FIRST_INDEX = tl.constexpr(13)  # of the first entry here in the whole tensor, likewise
SCALE = tl.constexpr(14)  # by row: address of the scales of an int8 moment, or 0
ROWS = tl.constexpr(15)  # by row
COLUMNS = tl.constexpr(16)
KIND = tl.constexpr(17)
FIRST_LINE = tl.constexpr(18)  # split tensors: of its columns among those of all of them
FIRST_PARTIAL = tl.constexpr(19)  # of its sums, one per chunk of rows and column
ROW_CHUNKS = tl.constexpr(20)  # of BLOCKS rows each
FIELDS = tl.constexpr(24)

# Of a group, behind one row for the whole step.
LR = tl.constexpr(0)
BETA = tl.constexpr(1)
DELTA = tl.constexpr(2)
LAMBDA = tl.constexpr(3)  # coupled decay
KAPPA = tl.constexpr(4)  # 1 − αλ of decoupled decay
SIGN = tl.constexpr(5)  # −1 to maximize
LR_ADDRESS = tl.constexpr(6)  # int64: of a tensor lr on the device, or 0
KAPPA_ADDRESS = tl.constexpr(7)
LR_IS_64 = tl.constexpr(8)  # whether those are float64, else float32
FIRST_TENSOR = tl.constexpr(9)  # int64, as all that follow
TENSORS = tl.constexpr(10)
FIRST_CLOCK = tl.constexpr(11)
CLOCKS = tl.constexpr(12)  # parameters with state, with or without a gradient
NUMBERS = tl.constexpr(16)
MAX_NORM = tl.constexpr(0)  # of the row for the whole step

# Sums over a chunk or a tensor.
RAW_SQ = tl.constexpr(0)
MOMENT_SQ = tl.constexpr(1)
DECAYED_SQ = tl.constexpr(2)
GRAD_THETA = tl.constexpr(3)
THETA_SQ = tl.constexpr(4)
GRAD_MOMENT = tl.constexpr(5)
SUMS = tl.constexpr(6)

# Coefficients of a tensor's update.
GRAD_FACTOR = tl.constexpr(0)  # line 1's and 2's on the stored gradient
DECAY = tl.constexpr(1)  # λ of line 3
ROOT = tl.constexpr(2)  # √β̂: m is multiplied by it twice, for β̂ may overflow float32 where β̂m does not
THETA_FACTOR = tl.constexpr(3)
ALPHA = tl.constexpr(4)
LENGTH = tl.constexpr(5)  # of the unit step, √n/‖m_t‖; else 1
T = tl.constexpr(6)
KEPT = tl.constexpr(7)  # β̂ to keep for Ψ = sqrt
NEW_BETA_HAT = tl.constexpr(8)
GRAD_SQ = tl.constexpr(9)
COEFFICIENTS = tl.constexpr(10)

# Of a group, between the phases of the scalars.
GROUP_GRAD_SQ = tl.constexpr(0)
GROUP_MOMENT_SQ = tl.constexpr(1)
GROUP_INNER = tl.constexpr(2)
GROUP_ENTRIES = tl.constexpr(3)
GROUP_NEWEST = tl.constexpr(4)
GROUP_PREVIOUS = tl.constexpr(5)
GROUP_BETA_HAT = tl.constexpr(6)
GROUP_KEPT = tl.constexpr(7)
GROUP_LENGTH = tl.constexpr(8)
GROUP_T = tl.constexpr(9)
GROUP_FIELDS = tl.constexpr(10)

# Flags of a set of tensors, and counts of the optimizer, int32.
TAKEN = tl.constexpr(0)  # this step
EVER_TAKEN = tl.constexpr(1)  # a step of this set
FLAGS = tl.constexpr(2)
STEPS_TAKEN = tl.constexpr(0)
STEPS_SKIPPED = tl.constexpr(1)
COUNTS = tl.constexpr(2)

GLOBAL_SCOPE = tl.constexpr(0)
GROUP_SCOPE = tl.constexpr(1)
TENSOR_SCOPE = tl.constexpr(2)

# Kinds of a tensor by row: the width of the tile that holds its rows, or
TILE_WIDTHS = (128, 256, 512, 1024)
LONG_ROW = tl.constexpr(4)  # a program per row reads it twice, the second time from the cache
COLUMN_KIND = tl.constexpr(5)  # columns are summed over chunks of rows, in three launches
SPLIT_KIND = tl.constexpr(6)  # one row that is cut into lines of SPLIT_WIDTH entries, likewise
SPECTRAL_KIND = tl.constexpr(7)  # a matrix, likewise with one norm
SPLIT_WIDTH = tl.constexpr(1024)

# Sums over a chunk of a column.
LINE_RAW_SQ = tl.constexpr(0)
LINE_GRAD_SQ = tl.constexpr(1)
LINE_MOMENT_SQ = tl.constexpr(2)
LINE_INNER = tl.constexpr(3)
LINE_SUMS = tl.constexpr(4)

# Coefficients of a column.
LINE_WEIGHT = tl.constexpr(0)  # βG where m counts, else 0
LINE_DIVISOR = tl.constexpr(1)  # M + δ
LINE_LENGTH = tl.constexpr(2)  # √n/N of a unit step, 0 where m_t is rounding
LINE_MOVES = tl.constexpr(3)
LINE_DECAYS = tl.constexpr(4)
LINE_COEFFICIENTS = tl.constexpr(5)

# What a program reports of its rows, in the order of `RowNorms`.
ROW_RAW_SQ = tl.constexpr(0)
ROW_GRAD_SQ = tl.constexpr(1)
ROW_MOMENT_SQ = tl.constexpr(2)
ROW_NEW_SQ = tl.constexpr(3)
ROW_COUNT = tl.constexpr(4)
ROW_TOOK_PART = tl.constexpr(5)
ROW_SKIPPED = tl.constexpr(6)
ROW_COS_MIN = tl.constexpr(7)
ROW_COS_SUM = tl.constexpr(8)
ROW_TURNED = tl.constexpr(9)
ROW_STATS = tl.constexpr(10)
