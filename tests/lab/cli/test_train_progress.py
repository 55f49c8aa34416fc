"""What a terminal shows while ``acmo train`` runs."""

import io
import re

from rich.console import Console

from acmo.lab.cli.train_command import _Shown
from acmo.lab.runs.training import Progress


def test_a_run_is_loading_until_its_first_step():
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    with _Shown(console) as progress:
        before = console.file.getvalue()
        progress(Progress(3, 10, 0.3, 1.25, 0.1))
    after = console.file.getvalue()[len(before) :]
    before, after = (re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text) for text in (before, after))
    assert "nan" not in before + after
    assert "epoch 0.3 loss 1.25" in after
    assert "3/10 steps" in after
