"""Plans: contradictions and unknown names are refused before anything is written."""

import math

import pytest

from acmo.lab.config.grids import check_names, drawn_points, grid_of, only_setting, points_of, run_counts
from acmo.lab.config.plan import make_plan
from acmo.lab.config.preset_files import presets, read_toml
from acmo.lab.config.run_options import run_config
from acmo.lab.config.schedules import Schedule
from acmo.lab.errors import LabError
from acmo.lab.results.run_record import Score
from acmo.lab.studies.comparison import check
from acmo.lab.studies.stages import tuning_spec
from acmo.lab.studies.storage import Store, sqlite_in
from acmo.lab.studies.trials import Studies, require_all
from tests.support.lab_studies import record

BOTH = {"label": "x", "optimizer": "acmo", "settings": {"lr": 1}, "grid": {"lr": [1]}}


def plan(**values):
    return make_plan({"tasks": ["digits"], **values})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"epochs": 1, "steps": 2}, "epochs and steps cannot both be given"),
        ({"checkpoint_every": "often"}, "60s, 5m, 1h or 200it"),
        ({"grids": {"acmo": {"lr": [math.nan]}}}, "grids.acmo.lr.0: must be finite, got nan"),
        ({"grids": {"acmo": {"lr": [{"a": 1}]}}}, "must be a number, a text, true, false or a list of numbers$"),
        ({"grids": {"acmo": {"betas": [[0.9, math.inf]]}}}, "must be finite"),
        ({"tune_seed": 2**31}, "tune_seed"),
        (
            {"contender": [{"label": "x", "optimizer": "acmo", "settings": {"lr": 1}, "grid": {"lr": [1]}}]},
            "lr of x is",
        ),
        ({"protocol": "fixed-wd", "grids": {"adam": {"weight_decay": [0.0]}}}, "sets the weight decay of adam"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(values, words):
    with pytest.raises(LabError, match=words):
        plan(**values)


@pytest.mark.parametrize("value", [math.nan, math.inf, [0.9, -math.inf]])
def test_a_setting_that_is_not_finite_is_refused(value):
    with pytest.raises(LabError, match=r"settings\.lr: must be finite"):
        run_config(task="digits", optimizer="acmo", settings={"lr": value})


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"grids": {"all": {"momentums": [0.9]}}}, "all.momentums is tried by no optimizer .* did you mean 'momentum'"),
        ({"grids": {"all": {"weight_decay": [0.0, 1.0]}}}, "default-wd does not tune it, tuned-wd does"),
        ({"baselines": ["adan"]}, "the baseline 'adan' is no optimizer .* did you mean 'adam'"),
        ({"schedule": "cosin"}, "did you mean 'cosine'"),
        ({"schedule": "steps:1:inf"}, "is not one of"),
        ({"device": "tpu"}, "'tpu'"),
        ({"grids": {"acmo": {"momentum": [0.9, 1.2]}}}, "momentum must be in .*got 1.2"),
        ({"grids": {"adam": {"lr": [0.1, "much"]}}}, "adam.lr must be a number, got 'much'"),
        ({"sampler": "random", "trials": 3, "grids": {"all": {"lr": [0.0, 0.1]}}}, "drawn between positive numbers"),
    ],
)
def test_wrong_values_are_refused_before_a_folder_is_made(values, words):
    """Otherwise the folder would hold a comparison, and the corrected command would be refused there."""
    with pytest.raises(LabError, match=words):
        check(plan(**values))


def test_a_comparison_under_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(LabError, match="without torchrun"):
        check(plan())


def test_grid_for_all_applies_where_the_option_exists():
    p = plan(optimizers=["adam", "padam", "sgd"], grids={"all": {"eps": [1e-8, 1e-4]}})
    assert ["eps" in grid_of(p, contender) for contender in p.contenders()] == [True, True, False]
    check_names(p)


@pytest.mark.parametrize("name", sorted(presets()))
def test_presets_name_only_things_that_exist(name):
    check_names(make_plan(read_toml(presets()[name])))


def test_a_value_named_twice_is_tried_once():
    p = plan(optimizers=["sgd"], grids={"sgd": {"lr": [0.1, 0.01, 0.1]}})
    assert points_of(grid_of(p, p.contenders()[0])) == [{"lr": 0.1}, {"lr": 0.01}]


@pytest.mark.parametrize("drawn", [{}, {"sampler": "random", "trials": 3}, {"sampler": "tpe", "trials": 3}])
def test_one_setting_is_tuned_only_without_final_runs(drawn):
    fixed = {"label": "fixed", "optimizer": "sgd", "settings": {"lr": 0.1}}
    p = plan(optimizers=["adam"], contender=[fixed], grids={"adam": {"lr": [0.1, 0.01, 0.001]}}, seeds=2, **drawn)
    assert run_counts(p) == {"adam": {"tune": 3, "final": 2}, "fixed": {"tune": 0, "final": 2}}
    assert only_setting(p, p.contenders()[0]) is None
    assert only_setting(p, p.contenders()[1]) == {"lr": 0.1}
    tuned = run_counts(p, final=False)
    assert tuned["adam"] == {"tune": 3, "final": 0}
    assert tuned["fixed"]["tune"] >= 1


def test_random_draws_from_a_small_grid_are_distinct_points(tmp_path):
    assert drawn_points({"x": ["a", "b"]}, 9, seed=0) in ([{"x": "a"}, {"x": "b"}], [{"x": "b"}, {"x": "a"}])
    p = plan(optimizers=["sgd"], sampler="random", trials=3, grids={"sgd": {"lr": [0.1]}})
    assert run_counts(p, final=False)["sgd-momentum"]["tune"] == 1
    spec = tuning_spec(p, p.contenders()[0], "digits", Score("accuracy", "max"))
    with Studies(Store(sqlite_in(tmp_path)), [spec]) as studies:
        studies.enqueue()
        claim = studies.claim()
        studies.finish(claim, record(claim, 0.5))
        assert studies.claim() is None
        require_all(studies)


def test_new_contender_may_bring_a_grid_others_may_not_change():
    first = plan(optimizers=["acmo", "sgd"], grids={"acmo": {"lr": [0.1]}})
    stored = first.model_dump(mode="json")
    more = plan(optimizers=["acmo", "sgd", "adam"], grids={"acmo": {"lr": [0.1]}, "adam": {"lr": [0.01]}})
    assert more.differs_from(stored) == []
    assert plan(optimizers=["acmo", "sgd"], grids={"acmo": {"lr": [0.2]}}).differs_from(stored) == ["grids"]
    assert plan(optimizers=["acmo"], grids={"all": {"lr": [0.1]}}).differs_from(stored) == ["grids"]


def test_a_step_factor_must_be_finite():
    with pytest.raises(LabError):
        Schedule("steps:1:1e999")


TOML = """tasks = ["digits"]  # 1
optimizers = [
  "acmo",
  "sgd",
]
[grids.acmo]  # 6
lr = [0.1]
[grids."sgd"]  # 8
lr = [
  0.1,
]
[[contender]]  # 12
label = "a"
optimizer = "acmo"
[[contender]]  # 15
label = "b"
optimizer = "acmo"
settings = { lr = 0.1 }
"""


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"sgd"]  # 8\nlr = [', '"sgd"]  # 8\nlr = [[[1]],', 9),  # not the first lr that stands there
        ('label = "b"', "label = 3", 16),
        ("lr = 0.1 }", "lr = { a = 1 } }", 18),
        ("settings = { lr = 0.1 }", "setting = { lr = 0.1 }", 18),
        ('label = "b"\n', "", 15),
        ("[grids.acmo]  # 6\nlr", "grids.acmo.lr", None),
        ('"acmo",', "3,", 2),
    ],
)
def test_the_line_that_is_named_is_the_one_that_is_wrong(tmp_path, old, new, line):
    file = tmp_path / "plan.toml"
    file.write_text(TOML)
    make_plan(read_toml(file), file)
    assert TOML.count(old) == 1
    file.write_text(TOML.replace(old, new))
    if line is None:
        make_plan(read_toml(file), file)
        return
    with pytest.raises(LabError, match=rf"plan\.toml, line {line}: "):
        make_plan(read_toml(file), file)
