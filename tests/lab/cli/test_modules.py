"""``acmo doctor``, ``acmo bench``, ``acmo theory`` are the modules of these names: their options, their exit codes."""

import re
from importlib import import_module

import pytest

from tests.support.lab_command import run_command

acmo = run_command


@pytest.mark.parametrize("name", ["doctor", "bench", "theory"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_has_the_form_of_every_command_and_all_options(acmo, name, flag):
    code, out, _ = acmo(name, flag)
    assert code == 0
    assert re.search(rf"Usage: .*{name} \[OPTIONS\]", out)
    assert "╭─ Options ─" in out
    assert "Examples" in out
    module = import_module("acmo.doctor" if name == "doctor" else f"acmo.{name}.__main__")
    shown = " ".join(out.replace("│", " ").split())
    for action in module.build_parser()._actions[1:]:
        assert action.option_strings[0] in shown
        assert action.help[1:20] in shown


def test_doctor_prints_which_backend_is_used(acmo):
    code, out, _ = acmo("doctor")
    assert code == 0
    assert "torch" in out


def test_a_wrong_option_ends_with_2(acmo):
    code, _, err = acmo("bench", "--no-such-option")
    assert code == 2
    assert "--no-such-option" in err
