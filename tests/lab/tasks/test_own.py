"""The example of a task of one's own does what it says, also beside an optimizer of one's own."""

from acmo.lab.config.run_options import run_config
from acmo.lab.runs.run_folder import run
from tests.support.paths import ROOT

EXAMPLES = ROOT / "examples"
OWN = EXAMPLES / "own_task.py"
SIGN_SGD = EXAMPLES / "own_optimizer" / "sign_sgd.py"


def test_own_task_is_learnt_with_a_registered_optimizer(tmp_path):
    what = run_config(task=f"{OWN}:Spirals", optimizer="acmo", settings={"lr": 0.1}, phase="final")
    result = run(what, tmp_path)
    assert result.test is not None
    assert result.test["accuracy"] > 0.9  # chance is 33 %, a straight cut 50 %


def test_an_optimizer_of_ones_own_trains_it_too(tmp_path):
    what = run_config(task=f"{OWN}:Spirals", optimizer=f"{SIGN_SGD}:SignSGD", settings={"lr": 0.003}, phase="final")
    result = run(what, tmp_path)
    assert result.test is not None
    assert result.test["accuracy"] > 0.9
    assert result.state_bytes == 4 * result.parameters
