"""``acmo doctor``, ``acmo bench``, ``acmo theory`` are the modules of these names: their options, their exit codes."""

import pytest

from tests.support.lab_command import run_command

acmo = run_command


@pytest.mark.parametrize("name", ["doctor", "bench", "theory"])
def test_help_is_the_modules_own(acmo, name):
    code, out, _ = acmo(name, "--help")
    assert code == 0
    assert f"python -m acmo.{name}" in out


def test_doctor_prints_which_backend_is_used(acmo):
    code, out, _ = acmo("doctor")
    assert code == 0
    assert "torch" in out


def test_a_wrong_option_ends_with_2(acmo):
    code, _, err = acmo("bench", "--no-such-option")
    assert code == 2
    assert "--no-such-option" in err
