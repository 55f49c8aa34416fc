"""`--dry-run` shows what a command would do, and writes nothing."""

import re

import pytest

from acmo.lab.config.grids import run_counts
from acmo.lab.config.plan import make_plan
from acmo.lab.config.preset_files import find_preset, presets, read_toml
from acmo.lab.tasks import find_task
from tests.support.lab_command import run_command

acmo = run_command  # a fixture


@pytest.mark.parametrize("name", sorted(presets()))
def test_every_preset_can_be_looked_at_without_its_data(acmo, tmp_path, name):
    code, out, err = acmo("compare", "--preset", name, "--dry-run")
    assert code == 0, err
    assert re.search(r"\d+ runs of \d+ (epochs|steps), [\d,]+ (epochs|steps) in all\.", out)
    assert "Needs: " in out
    assert list(tmp_path.iterdir()) == []


def test_flag_overrides_the_file(acmo, tmp_path):
    mine = '[[contender]]\nlabel = "mine"\noptimizer = "acmo"\n'
    (tmp_path / "a.toml").write_text('tasks = ["digits"]\nsteps = 700\nbaselines = ["mine"]\n' + mine)
    code, out, err = acmo("compare", "--preset", "a.toml", "--epochs", "3", "--optimizers", "sgd,adam", "--dry-run")
    assert code == 0, err
    assert "digits: 18 runs of 3 epochs" in out


def test_a_title_that_the_flags_make_untrue_is_left_out(acmo):
    assert "the paper's seven optimizers" in acmo("compare", "digits", "--dry-run")[1]
    assert "the paper's seven optimizers" in acmo("compare", "digits", "--dry-run", "--checkpoint-every", "5s")[1]
    for flags in (["--optimizers", "sgd,adam"], ["--seeds", "2"], ["--epochs", "1"], ["--try", "all.lr=1"]):
        out = acmo("compare", "digits", "--dry-run", *flags)[1]
        assert "the paper's seven" not in out
        assert "Needs" not in out


@pytest.mark.parametrize("name", presets())
def test_every_preset_is_valid_and_says_what_it_needs(name):
    plan = make_plan(read_toml(find_preset(name)))
    assert plan.title
    assert plan.needs
    for task in plan.tasks:
        find_task(task)


def test_the_papers_experiments_are_all_there():
    for data in ("cifar10", "cifar100"):
        for protocol in ("fixed", "tuned"):
            for net in ("vgg16", "resnet50", "densenet121"):
                plan = make_plan(read_toml(find_preset(f"paper/{data}-{protocol}-{net}")))
                assert plan.tasks == [f"{data}:paper/{net}"]
                assert plan.protocol == f"{protocol}-wd"
                assert plan.grid == "paper"
                recipe = find_task(plan.tasks[0]).recipe
                assert (recipe.epochs, recipe.batch_size, recipe.schedule.text) == (200, 128, "steps:50:0.1")
                tuned = {
                    "acmo": 40,
                    "acmo-authors": 40,
                    "sgd-momentum": 360,
                    "adam": 160,
                    "amsgrad": 160,
                    "adamw": 160,
                    "padam": 480,
                    "adabound": 320,
                }
                fixed = {label: n // 5 if label != "sgd-momentum" else n for label, n in tuned.items()}
                assert {k: v["tune"] for k, v in run_counts(plan).items()} == (fixed if protocol == "fixed" else tuned)


def test_a_dry_run_counts_and_writes_nothing(acmo, tmp_path):
    code, out, _ = acmo("compare", "--preset", "paper/cifar100-fixed-resnet50", "--dry-run")
    assert code == 0
    assert "cifar100:paper/resnet50: 672 runs of 200 epochs, 134,400 epochs in all." in out
    assert "Needs: CIFAR-100" in out
    assert list(tmp_path.iterdir()) == []


def test_digits_has_as_many_rates_for_everyone(acmo):
    code, out, err = acmo("compare", "digits", "--optimizers", "row-acmo,adamw", "--seeds", "1", "--dry-run")
    assert code == 0, err
    assert "digits: 10 runs" in out
    assert "What is not given comes from the preset digits." in out


def test_dry_run_counts_no_tuning_of_an_only_setting(acmo):
    code, out, err = acmo("compare", "--preset", "evidence/gpt-10m", "--dry-run")
    assert code == 0, err
    assert "text:char/small: 4 runs of 600 steps, 2,400 steps in all." in out
    assert "An optimizer with one setting is not tuned." in out
    assert "at the edge of its grid" not in out
    code, out, err = acmo("tune", "digits", "--optimizer", "adam", "--try", "lr=0.001", "--dry-run")
    assert code == 0, err
    assert "digits: 1 runs" in out
    assert "is not tuned" not in out


def test_task_that_cannot_refit_says_so_before_anything_runs(acmo, tmp_path):
    (tmp_path / "a.txt").write_text("to be or not to be\n" * 500)
    code, _, err = acmo("compare", "text:char", "--data", "a.txt", "--refit-on-all", "--optimizers", "sgd", "--dry-run")
    assert code == 2
    assert "cannot train on its validation data" in err
