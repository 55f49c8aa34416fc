"""What SECURITY.md promises of inputs that are not trusted, where no other test shows it."""

import io
import os
import re
from pathlib import Path

import pytest
import torch

from acmo.lab.errors import LabError
from acmo.lab.runs import checkpoints
from acmo.lab.runs.run_folder import run
from tests.support.lab_runs import Stop, checkpointed_config, stop_at
from tests.support.lab_studies import finish_all, studies
from tests.support.paths import ROOT


class Payload:
    """What runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    what = checkpointed_config()
    with pytest.raises(Stop):
        run(what, tmp_path / "run", stop_at(16))
    for path in checkpoints.found(tmp_path / "run" / "checkpoints"):
        buffer = io.BytesIO()
        torch.save({"model": Payload(tmp_path / "hit"), "metrics_size": 0}, buffer)
        path.write_bytes(checkpoints._sealed(buffer.getvalue()))  # its checksum is right
    with pytest.warns(checkpoints.DamagedCheckpoint, match="is damaged"):
        assert run(what, tmp_path / "run").status == "finished"
    assert not (tmp_path / "hit").exists()
    torch.load(buffer.seek(0) or buffer, weights_only=False)
    assert (tmp_path / "hit").exists()  # the payload works where it is trusted


@pytest.mark.parametrize("content", [None, "text", {"label": 1}, {"status": "finished", "curve": [1]}])
def test_forged_record_of_the_database_is_a_sentence(tmp_path, content):
    with studies(tmp_path) as found:
        finish_all(found)
        (first, *_) = found._trials(found.specs[0], "COMPLETE")
        forge(found, first._trial_id, content)
    with studies(tmp_path) as found, pytest.raises(LabError, match="holds no record of a run"):
        found.records(found.specs[0])


def forge(found, trial: int, content: object) -> None:
    """Write into the database what Optuna would not write any more."""
    import json

    import sqlalchemy

    with found._storage.engine.begin() as connection:
        change = "UPDATE trial_user_attributes SET value_json = :new WHERE trial_id = :trial AND key = 'record'"
        connection.execute(sqlalchemy.text(change), {"new": json.dumps(content), "trial": trial})


def test_every_promise_names_a_test_that_exists():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
    assert len(named) >= 8
    for file, name in named:
        assert re.search(rf"^def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE), (file, name)
    rows = [line for line in text.splitlines() if re.match(r"\| .*\| no \|", line)]
    assert len(rows) >= 5
    assert all("::test_" in row for row in rows)  # each input that is not trusted has one
