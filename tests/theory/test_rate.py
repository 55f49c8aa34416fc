"""The rate's measurement: ACMo's batch of seeds is Algorithm 1 for each seed, and stays below the repaired bound."""

import numpy as np
import pytest
import torch

import acmo
from acmo.theory import path, problems, theorem_settings
from acmo.theory.rate import Rate, Shard, combine, markdown_table, run_shard


@pytest.mark.parametrize("psi", ["sqrt", "identity"])
def test_acmo_with_one_tensor_per_seed_equals_numpy(psi: str) -> None:
    problem = problems.cosine_sum(n=5, d=3, seed=2)
    chosen = theorem_settings(problem.smoothness, problem.sigma)
    rng = np.random.default_rng(0)
    theta, draws = rng.uniform(-np.pi, np.pi, (6, 3)) / problem.omega, rng.integers(0, 5, (60, 6))
    twin = path.run(problem, theta.copy(), draws, chosen["lr"], 0.5, chosen["delta"], psi)
    params = [torch.nn.Parameter(row) for row in torch.from_numpy(theta)]
    opt = acmo.ACMo(params, chosen["lr"], 0.5, chosen["delta"], psi=psi, norm_scope="tensor")
    schedule = chosen.schedule(opt)
    for k, row in enumerate(draws):
        for p, g in zip(params, torch.from_numpy(problem.grad_of(theta, row)), strict=True):
            p.grad = g
        opt.step()
        schedule.step()
        np.testing.assert_allclose(theta, twin.theta[k + 1], rtol=0, atol=1e-12)


class GivenGradients(problems.SkewedNoise):
    """Hand out the same gradients whatever θ is: draw i is entry i of ``gradients``, in one dimension."""

    gradients = np.array([0.001, 2.0, 2.0, -0.3, 0.0, 0.0, 4.0, 1.0, -2.0, 0.5])

    def grad_of(self, theta: np.ndarray, i: np.ndarray) -> np.ndarray:
        return self.gradients[i][..., None]


@pytest.mark.parametrize("delta", [0.0, 1.0])
@pytest.mark.parametrize("psi", ["sqrt", "identity"])
def test_numpy_beta_hat_is_acmos_from_first_steps_and_zeros(psi: str, delta: float) -> None:
    """A tiny first gradient bounds β̂_2 through Ψ; a zero gradient leaves what Ψ keeps, and momentum starts again."""
    problem, steps = GivenGradients(), len(GivenGradients.gradients)
    twin = path.run(problem, np.zeros((1, 1)), np.arange(steps)[:, None], 0.1, 0.5, delta, psi)
    p = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    opt = acmo.ACMo([p], 0.1, 0.5, delta, psi=psi)
    for k, g in enumerate(problem.gradients):
        opt.param_groups[0]["lr"] = 0.1 / np.sqrt(k + 1)
        p.grad = torch.full_like(p, float(g))
        opt.step()
        np.testing.assert_allclose(opt.state[p]["momentum_buffer"].numpy(), twin.m[k, 0], rtol=1e-12, err_msg=str(k))
        np.testing.assert_allclose(p.detach().numpy(), twin.theta[k + 1, 0], rtol=1e-12, err_msg=str(k))
    if psi == "sqrt" and delta:
        assert twin.applied[1, 0] == pytest.approx(np.sqrt(2) * 0.5 * 0.001)


def test_small_measurement_falls_and_stays_below_the_bound() -> None:
    problem = problems.cosine_sum()
    rate = combine(problem, [run_shard(problem, 128, 10, 2, (0, k)) for k in range(2)])
    assert rate.T.tolist() == [1, 2, 4, 8, 16, 32, 64, 128]
    assert rate.seeds == 20
    assert rate.slack() > 0.5
    assert rate.averaged[-1] < rate.averaged[0] / 2
    assert rate.sampled[0] == pytest.approx(rate.averaged[0])  # after one step there is one iterate to draw


def test_acmo_is_sgd_to_half_a_percent_in_the_theorems_setting() -> None:
    """β = 1/50 and δ = σ leave β̂ so small that the moment hardly matters; the first step is the same."""
    problem = problems.cosine_sum()
    rate = combine(problem, [run_shard(problem, 256, 50, 1, (0, k)) for k in range(2)])
    assert rate.sgd[0] == pytest.approx(rate.averaged[0], rel=1e-12)
    np.testing.assert_allclose(rate.averaged, rate.sgd, rtol=0.005)
    assert "| 256 |" in markdown_table(rate)


def test_exponent_is_the_slope_and_slack_detects_a_low_bound() -> None:
    t = 2.0 ** np.arange(12)
    y = (1 + np.log(t)) / np.sqrt(t)
    rate = Rate(t, y, y, 0 * y, 2 * y, y * 0.9, 1, y)
    assert rate.exponent(log_corrected=True) == pytest.approx(-0.5)
    assert rate.slack() == pytest.approx(-1 / 9)


def test_shards_combine_as_if_all_seeds_had_run_together() -> None:
    problem = problems.cosine_sum()
    rng = np.random.default_rng(0)
    whole = Shard(rng.random((3, 2, 5)), rng.random((3, 5)), rng.random(5), rng.random((3, 5)))
    cut = [Shard(*(x[..., :2] for x in whole)), Shard(*(x[..., 2:] for x in whole))]
    for a, b in zip(combine(problem, [whole]), combine(problem, cut), strict=True):
        np.testing.assert_allclose(a, b)


def test_acmo_with_psi_reaches_the_minimum_under_skewed_noise() -> None:
    """ACMo itself, at its defaults β = 0.9, δ = 1e-8: 40 seeds, one dimension, 300 steps from the minimum."""
    problem = problems.SkewedNoise()

    def offset(psi: str) -> float:
        rng = np.random.default_rng(0)
        theta = np.zeros((40, 1))
        params = [torch.nn.Parameter(row) for row in torch.from_numpy(theta)]
        opt = acmo.ACMo(params, lr=0.3, psi=psi, norm_scope="tensor")
        for t in range(1, 301):
            opt.param_groups[0]["lr"] = 0.3 / np.sqrt(t)
            g = problem.grad_of(theta, rng.integers(0, 10, 40))
            for p, row in zip(params, torch.from_numpy(g), strict=True):
                p.grad = row
            opt.step()
        return float(problem.grad(theta).mean())

    assert offset("identity") < -0.15
    assert abs(offset("sqrt")) < 0.03


@pytest.mark.parametrize(("beta", "delta", "drift"), [(1 / 50, 2.0, 3.2e-4), (0.9, 0.0, 0.27)])
def test_without_psi_the_mean_step_at_the_minimum_is_not_zero(beta: float, delta: float, drift: float) -> None:
    """E[m_t] at ∇f = 0, every sequence of 12 draws counted; m_t hardly remembers more."""
    values, chances = np.array([-2.0, 2 / 9]), np.array([0.1, 0.9])
    m, weight = values, chances
    for _ in range(11):
        g, before = (x.ravel() for x in np.meshgrid(values, m, indexing="ij"))
        m = path.compute_beta_hat(g[:, None], before[:, None], beta, delta) * before + g
        weight = np.outer(chances, weight).ravel()
    assert weight.sum() == pytest.approx(1)
    assert weight @ m == pytest.approx(drift, rel=0.15)
