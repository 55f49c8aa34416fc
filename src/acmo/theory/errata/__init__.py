"""The paper's errata as data: what is printed, what is right, and a counter-example that runs.

One file per subject; `ERRATA` lists them in the paper's order.
"""

from acmo.theory.errata.appendix_lemmas import a3_half, a6_index, b_hypotheses, first_beta_hat, first_factor
from acmo.theory.errata.auxiliary_problems import eq6_tau, eq7_sum, sgd_alpha, sgd_momentum, taylor
from acmo.theory.errata.descent_and_angles import acute_history, acute_moment, sufficient
from acmo.theory.errata.docs_table import count_by_severity, markdown_table, replace_table
from acmo.theory.errata.erratum import Erratum, Severity, Slacks
from acmo.theory.errata.experiments import beta_everywhere, decay_on_test_data, same_objective, two_points
from acmo.theory.errata.hypotheses import alpha_below, assumption_1, psi_raw, shuffling
from acmo.theory.errata.proof_t2 import t2_prime, t21_g, t21_moment, t22_dependence, t23_index, t231_half
from acmo.theory.errata.proof_t3 import t3_l, t31_square, t32_dependence, t332_index, t332_series
from acmo.theory.errata.theorem import division, gap, projection, return_line

__all__ = ["ERRATA", "Erratum", "Severity", "Slacks", "count_by_severity", "markdown_table", "replace_table"]

ERRATA: tuple[Erratum, ...] = (
    # section 3: the auxiliary problems and the intuition
    sgd_alpha,
    taylor,
    eq6_tau,
    eq7_sum,
    sgd_momentum,
    sufficient,
    acute_moment,
    acute_history,
    # section 4: Algorithm 1 and Theorem 4.1
    assumption_1,
    shuffling,
    return_line,
    projection,
    alpha_below,
    psi_raw,
    first_beta_hat,
    gap,
    division,
    # section 5: the experiments
    beta_everywhere,
    same_objective,
    decay_on_test_data,
    two_points,
    # the appendix
    a3_half,
    a6_index,
    first_factor,
    t2_prime,
    t21_moment,
    t21_g,
    t22_dependence,
    t23_index,
    t231_half,
    t3_l,
    t31_square,
    t32_dependence,
    t332_index,
    t332_series,
    b_hypotheses,
)
