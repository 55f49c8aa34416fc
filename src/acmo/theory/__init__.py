"""The paper's theory as code that runs: auxiliary problems, lemmas, the theorem, its errata; ``python -m acmo.theory``.

What holds, what does not, and the repaired theorem with its proof: docs/theory.md.
"""

from acmo.theory.bounds import Bound, TheoremSettings, convergence_bound, theorem_settings

__all__ = ["Bound", "TheoremSettings", "convergence_bound", "theorem_settings"]
