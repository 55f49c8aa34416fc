"""What every test shares: a seed, how Hypothesis draws, and the tier that a test belongs to.

| tier | run by | holds |
|---|---|---|
| quick | ``make test`` | the folders in ``QUICK``, apart from what is marked ``slow`` |
| slow | ``make test-all`` | all other folders, and what is marked ``slow`` |
| nightly | ``make test-nightly`` | what is marked ``nightly``, and what the mark ``combinations`` leaves out |

Without ``--tier`` pytest runs the first two.
"""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from tests.support.combinations import covering

# Before anything imports Triton: there is no GPU, and its kernels run in its interpreter. Tests of compiled kernels are
# processes of their own.
os.environ.setdefault("TRITON_INTERPRET", "1")

QUICK = ("backends", "core", "rivals", "torch_suite", "lab/test_smoke.py")
TESTS = Path(__file__).parent

# A first call may compile or load the kernel, so no deadline. The same draws on each run, unless one goes exploring.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Make every test repeatable, whatever ran before it in the same worker."""
    torch.manual_seed(0)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--tier``."""
    parser.addoption("--tier", choices=["quick", "slow", "nightly"], help="run the tests of this tier only")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing that the quick tier does not run: its packages may not be installed."""
    if config.getoption("tier") != "quick" or not collection_path.is_relative_to(TESTS):
        return None
    path = collection_path.relative_to(TESTS)
    quick = [Path(name) for name in QUICK]
    return None if any(path.is_relative_to(name) or name.is_relative_to(path) for name in quick) else True


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its tier, and deselect the other tiers."""
    for item in items:
        path = item.path.relative_to(TESTS)
        if not any(path.is_relative_to(name) for name in QUICK):
            item.add_marker("slow")
    for item in left_out(items):
        item.add_marker("nightly")
    tier = config.getoption("tier")
    tiers = {tier} if tier else {"quick", "slow"} if "nightly" not in config.option.markexpr else {"nightly"}
    config.hook.pytest_deselected(items=[item for item in items if tier_of(item) not in tiers])
    items[:] = [item for item in items if tier_of(item) in tiers]


def tier_of(item: pytest.Item) -> str:
    """Return the tier that runs a test."""
    return next((tier for tier in ("nightly", "slow") if item.get_closest_marker(tier)), "quick")


def left_out(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that the mark ``combinations`` leaves to the nightly tier."""
    by_test: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("combinations"):
            by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found: list[pytest.Item] = []
    for cases in by_test.values():
        mark = cases[0].get_closest_marker("combinations")
        strength = mark.args[0] if mark and mark.args else 2
        values = [[(name, repr(value)) for name, value in case.callspec.params.items()] for case in cases]
        chosen = covering(values, strength)
        found += [case for index, case in enumerate(cases) if index not in chosen]
    return found
