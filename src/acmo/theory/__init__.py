"""The paper's theory as code that runs: ``python -m acmo.theory``.

Auxiliary problems, lemmas, the theorem and the errata. docs/theory.md states what holds and has the repaired proof.
"""

from acmo.theory.bounds import Bound, TheoremSettings, convergence_bound, theorem_settings

__all__ = ["Bound", "TheoremSettings", "convergence_bound", "theorem_settings"]
