"""Ctrl-C and SIGTERM: a checkpoint is written after the step under way, and the run resumes from it."""

import os
import signal

import pytest

from acmo.lab.runs import checkpoints, run
from acmo.lab.runs.stop_signals import SIGNALS, stop_on_signal
from tests.support.lab_runs import assert_same, checkpointed_config


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_asks_to_stop_and_second_one_raises(number):
    before = signal.getsignal(number)
    with stop_on_signal() as stop:
        assert not stop()
        os.kill(os.getpid(), number)
        assert stop()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) is before


def test_run_that_is_stopped_saves_and_resumes_with_same_bits(tmp_path):
    asked = iter(range(1000))
    with pytest.raises(KeyboardInterrupt):
        run(checkpointed_config(checkpoint_every="1h"), tmp_path / "cut", stop=lambda: next(asked) >= 6)
    (saved,) = checkpoints.found(tmp_path / "cut" / "checkpoints")
    assert int(saved.stem.removeprefix("step-")) > 1
    run(checkpointed_config(checkpoint_every="1h"), tmp_path / "cut")
    run(checkpointed_config(checkpoint_every="1h"), tmp_path / "whole")
    assert_same(tmp_path / "cut", tmp_path / "whole")
