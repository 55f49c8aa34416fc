"""``config.json`` records every setting that is in effect, whoever set it."""

import json

import pytest
import torch

from acmo import ACMo
from acmo.lab.runs.effective import describe_optimizer
from acmo.lab.runs.run_folder import run
from acmo.rivals import REGISTRY
from tests.support.lab_runs import task_config as config


def test_config_has_the_defaults_of_optimizer_and_recipe(tmp_path):
    run(config(schedule="cosine"), tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["config"]["settings"] == {"lr": 0.1}
    optimizer, training = stored["effective"]["optimizer"], stored["effective"]["run"]
    assert optimizer["lr"] == 0.1  # before the schedule
    defaults = {key: value for key, value in REGISTRY["acmo"].defaults.items() if key != "process_group"}
    assert {**optimizer, **defaults, "lr": 0.1} == optimizer
    assert training["schedule"] == "cosine"
    assert training["batch_size"] == 20
    assert training["steps"] == 40
    assert training["epochs"] == 4
    assert training["device"] == "cpu"
    assert training["threads"] == torch.get_num_threads()


def test_settings_of_other_groups_are_listed_where_they_differ():
    a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    options = {"momentum_dtype": torch.bfloat16, "projection": torch.relu}
    groups = [{"params": a.parameters()}, {"params": [b.weight], "lr": torch.tensor(0.5)}]
    found = describe_optimizer(ACMo(groups, lr=0.1, **options))
    assert found["class"] == "ACMo"
    assert found["momentum_dtype"] == "bfloat16"
    assert found["projection"] == "relu"
    assert found["groups"] == [{"lr": 0.5, "tensors": 1}]
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("name", ["muon", "schedule-free", "adam", "row-acmo"])
def test_every_contender_has_settings_of_json_types(name):
    if name == "schedule-free":
        pytest.importorskip("schedulefree")
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    found = describe_optimizer(REGISTRY[name].build_for(model))
    assert json.loads(json.dumps(found)) == found
    assert found["lr"] == pytest.approx(REGISTRY[name].defaults["lr"])
