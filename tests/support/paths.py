"""Where the tests find the repository, the helper modules that are also task files, and the real datasets."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
SUPPORT = ROOT / "tests" / "support"
DATA = ROOT.parent / "shared" / "data"  # beside the clone; what needs it skips where it is missing
