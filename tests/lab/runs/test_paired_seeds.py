"""Every optimizer sees the same initial weights and the same batches at the same seed."""

import pytest
import torch

from acmo.lab.config.run_options import run_config
from acmo.lab.runs.ranks import Ranks
from acmo.lab.runs.run_folder import _begin
from acmo.lab.runs.training import Training
from acmo.lab.tasks import find_task
from acmo.rivals import REGISTRY
from tests.support.lab_runs import TASKS


class Seen:
    """Keeps what a task is asked for, and what dropout draws."""

    def __init__(self, training: Training) -> None:
        self.weights = [p.detach().clone() for p in training.model.parameters()]
        self.batches: list[torch.Tensor] = []
        self.generators: list[torch.Tensor] = []
        collate = training.task.collate

        def watch(indices: torch.Tensor, epoch: int):
            self.batches.append(collate(indices, epoch)[0])
            self.generators.append(torch.get_rng_state())
            return collate(indices, epoch)

        training.task.collate = watch  # type: ignore[method-assign]


def follow(optimizer: str, task: str, seed: int) -> Seen:
    config = run_config(task=task, optimizer=optimizer, seed=seed, steps=14)
    training = _begin(config, find_task(config.task, None, config.seed), Ranks(torch.device("cpu")))
    seen = Seen(training)
    training.run(None, lambda logged: False, lambda: None)
    return seen


def assert_same(a: Seen, b: Seen) -> None:
    for one, two in ((a.weights, b.weights), (a.batches, b.batches), (a.generators, b.generators)):
        assert len(one) == len(two) > 0
        assert all(torch.equal(x, y) for x, y in zip(one, two, strict=True))


@pytest.mark.parametrize("optimizer", sorted(REGISTRY))
def test_weights_batches_and_dropout_do_not_depend_on_it(optimizer: str):
    if optimizer in ("lion", "schedule-free"):
        pytest.importorskip(REGISTRY[optimizer].class_path.partition(":")[0])
    task = f"{TASKS}:Blobs"  # with dropout; 14 steps are more than an epoch
    assert_same(follow(optimizer, task, 3), follow("sgd-momentum", task, 3))


def test_another_seed_has_other_weights_and_batches():
    task = f"{TASKS}:Blobs"
    one, two = follow("acmo", task, 3), follow("acmo", task, 4)
    assert not torch.equal(one.weights[0], two.weights[0])
    assert not torch.equal(one.batches[0], two.batches[0])
