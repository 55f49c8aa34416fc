"""The queue of trials: every point once, whoever asks and whoever dies; and no password in what a store says."""

import multiprocessing
import os
import signal
import time

import pytest

from acmo.lab.config.grids import describe, drawn_points, grid_of, points_of, run_counts
from acmo.lab.config.plan import Contender, make_plan
from acmo.lab.errors import LabError
from acmo.lab.redaction import redact_passwords
from acmo.lab.results.run_record import Score
from acmo.lab.studies.spec import Spec
from acmo.lab.studies.stages import tuning_spec, tuning_waves
from acmo.lab.studies.storage import Store, sqlite_in
from acmo.lab.studies.trials import Studies, require_all
from acmo.rivals import REGISTRY
from tests.support.lab_studies import LRS, finish_all, record, spec, studies


def test_every_point_is_handed_out_once_in_order(tmp_path):
    assert [p["lr"] for p in finish_all(studies(tmp_path))] == LRS


def test_enqueuing_again_adds_nothing(tmp_path):
    first = studies(tmp_path)
    claim = first.claim()
    claim = first.claim()
    first.finish(claim, record(claim))
    again = studies(tmp_path)
    assert again.counts() == {"all": 6, "done": 1, "running": 1, "waiting": 4, "failed": 0}
    assert len(finish_all(again)) == 4
    assert claim is not None


def test_a_study_may_grow(tmp_path):
    finish_all(studies(tmp_path, spec([{"seed": 1}], phase="final")) and studies(tmp_path))
    more = studies(tmp_path, spec([{"seed": 1}, {"seed": 2}], phase="final", name="f"))
    assert more.counts()["waiting"] == 2
    assert more.claim().config.seed == 1


def _work(url: str, taken) -> None:
    found = Studies(Store(url), [spec(points=[{"lr": lr} for lr in LRS]), spec(name="t")], str(os.getpid()))
    found.enqueue()
    while (claim := found.claim()) is not None:
        taken.put((claim.spec.name, claim.point["lr"]))
        time.sleep(0.02)
        found.finish(claim, record(claim))


def test_processes_that_start_at_once_share_the_grid(tmp_path):
    context = multiprocessing.get_context("fork")
    taken = context.Queue()
    workers = [context.Process(target=_work, args=(sqlite_in(tmp_path), taken)) for _ in range(3)]
    for worker in workers:
        worker.start()
    got = [taken.get(timeout=60) for _ in range(12)]
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    assert sorted(got) == sorted((name, lr) for name in "st" for lr in LRS)
    assert taken.empty()


def _die_with_a_trial(url: str, ready) -> None:
    claim = Studies(Store(url, heartbeat=1, grace=2), [spec([{"lr": 0.1}])]).claim()
    ready.put(claim.trial.number)
    ready.close()
    ready.join_thread()
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_trial_of_a_worker_that_was_killed_is_tried_again(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}]), heartbeat=1, grace=2)
    context = multiprocessing.get_context("fork")
    ready = context.Queue()
    worker = context.Process(target=_die_with_a_trial, args=(found.store.url, ready))
    worker.start()
    assert ready.get(timeout=60) == 0
    worker.join(60)
    assert found.claim() is None  # it may still be alive, for all we know
    deadline = time.monotonic() + 30
    while (claim := found.claim()) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert claim.point == {"lr": 0.1}
    assert claim.trial.number == 1
    assert found.finish(claim, record(claim))
    assert found.counts() == {"all": 1, "done": 1, "running": 0, "waiting": 0, "failed": 0}


@pytest.mark.slow
def test_a_trial_that_gives_signs_of_life_is_left_alone(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}]), heartbeat=1, grace=2)
    claim = found.claim()
    with found.alive(claim):
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            assert studies(tmp_path, spec([{"lr": 0.1}]), heartbeat=1, grace=2).claim() is None
            time.sleep(0.5)
    assert found.finish(claim, record(claim))


def test_late_worker_cannot_overwrite_the_new_result(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}]))
    zombie = found.claim()
    found.give_back("s", zombie.trial.number, died=True)
    other = found.claim()
    assert other.point == zombie.point
    assert found.finish(other, record(other, 0.2))
    assert not found.finish(zombie, record(zombie, 0.9))
    assert [r.valid["accuracy"] for r in found.records(found.specs[0])] == [0.2]


def test_a_worker_that_died_while_claiming_leaves_nothing_behind(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}]))
    found._studies["s"].ask()  # running, without a mark and without a heartbeat: nobody will ever finish it
    assert found.claim().point == {"lr": 0.1}


def test_trial_that_always_kills_its_worker_is_given_up(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}]), retries=2)
    for _ in range(3):
        found.give_back("s", found.claim().trial.number, died=True)
    assert found.claim() is None
    with pytest.raises(LabError, match="1 of 1 trials were given up after their workers died 3 times"):
        require_all(found)
    found.enqueue()
    assert found.claim() is not None  # the same command tries again


def test_trial_returned_on_ctrl_c_is_claimed_by_the_next_start(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}]))
    found.give_back("s", found.claim().trial.number)
    assert found.claim() is None
    assert studies(tmp_path, spec([{"lr": 0.1}])).claim().point == {"lr": 0.1}


def test_a_diverged_trial_is_complete_with_the_worst_value(tmp_path):
    found = studies(tmp_path, spec([{"lr": 0.1}], score=Score("loss", "min")))
    claim = found.claim()
    assert found.finish(claim, record(claim, status="diverged"))
    assert found._done(found.specs[0])[0].value == float("inf")


def test_betas_come_back_as_they_went_in(tmp_path):
    grid = {"betas": [[0.9, 0.99], [0.9, 0.999]], "amsgrad": [True, False]}
    one = Spec(**{**spec(points_of(grid)).__dict__, "grid": grid})
    found = Studies(Store(sqlite_in(tmp_path)), [one])
    found.enqueue()
    points = []
    while (claim := found.claim()) is not None:
        points.append(claim.point)
        found.finish(claim, record(claim, 0.5))
    assert points == points_of(grid)


def test_tpe_makes_all_trials_within_the_range_of_the_grid(tmp_path):
    one = spec([], sampler="tpe", trials=7)
    points = finish_all(studies(tmp_path, one))
    assert len(points) == 7
    assert len({p["lr"] for p in points}) == 7
    assert all(min(LRS) <= p["lr"] <= max(LRS) for p in points)
    assert finish_all(studies(tmp_path, one)) == []


def test_random_points_repeat_and_more_extend_the_first():
    grid = {"lr": LRS, "weight_decay": [0.0, 1e-4]}
    assert drawn_points(grid, 5, seed=0) == drawn_points(grid, 9, seed=0)[:5]
    assert drawn_points(grid, 5, seed=0) != drawn_points(grid, 5, seed=1)


def plan(**values):
    return make_plan({"tasks": ["digits"], **values})


@pytest.mark.parametrize(("protocol", "without_decay"), [("tuned-wd", False), ("default-wd", True)])
def test_the_full_grid_is_the_registrys(protocol, without_decay):
    for name, entry in REGISTRY.items():
        grid = grid_of(plan(optimizers=[name], grid="full", protocol=protocol), Contender(label=name, optimizer=name))
        assert set(grid) == set(entry.grid) - ({"weight_decay"} if without_decay else set())
        if not without_decay:
            assert len(points_of(grid)) == len(entry)


def test_everyone_has_as_many_learning_rates():
    p = plan(optimizers=list(REGISTRY))
    assert {len(grid_of(p, c)["lr"]) for c in p.contenders()} == {4}
    assert all(set(grid_of(p, c)) == {"lr"} for c in p.contenders())
    assert sum(c["tune"] + c["final"] for c in run_counts(plan()).values()) == 7 * (4 + 5)


def test_the_papers_eight_rates_are_there_by_name():
    p = plan(grid="lr")
    assert all(
        grid_of(p, c) == {"lr": [0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0001, 0.00005]} for c in p.contenders()
    )
    assert sum(c["tune"] + c["final"] for c in run_counts(p).values()) == 7 * (8 + 5)


def test_fixed_wd_tunes_sgd_first_and_shares_its_weight_decay():
    p = plan(protocol="fixed-wd", optimizers=["acmo", "sgd", "adamw"])
    assert [[c.label for c in wave] for wave in tuning_waves(p)] == [["sgd-momentum"], ["acmo", "adamw"]]
    sgd, adamw = p.contenders()[1], p.contenders()[2]
    assert len(grid_of(p, sgd)["weight_decay"]) == 5
    assert grid_of(p, adamw, 5e-4)["weight_decay"] == [5e-4]
    assert run_counts(p)["adamw"]["tune"] == 4


def test_other_options_make_another_study_moved_data_does_not():
    def name(**values):
        p = plan(optimizers=["sgd"], **values)
        return tuning_spec(p, p.contenders()[0], "digits", Score("accuracy", "max")).name

    assert name() == name(data="/elsewhere", device="cpu", seeds=9)
    assert len({name(), name(epochs=3), name(tune_seed=4), name(grids={"all": {"lr": [1.0]}}), name(batch_size=7)}) == 5


def test_a_grid_of_ones_own_replaces_the_registrys():
    p = plan(optimizers=["adam", "acmo"], grids={"all": {"lr": [1.0]}, "adam": {"eps": [1e-8, 1e-4]}})
    assert [grid_of(p, c) for c in p.contenders()] == [{"lr": [1.0], "eps": [1e-8, 1e-4]}, {"lr": [1.0]}]
    assert describe({"lr": 0.1, "betas": [0.9, 0.99]}) == "lr=0.1 betas=(0.9, 0.99)"


SECRETS = ["hunter2secret", "p%40ss%2Fw%3Ard", "q@c:1"]


@pytest.mark.parametrize("secret", SECRETS)
def test_passwords_are_scrubbed_however_they_are_spelled(secret):
    from urllib.parse import quote, unquote

    url = f"postgresql://me:{secret}@127.0.0.1:1/db"
    store = Store(url)
    said = [
        repr(store),
        store.safe_url,
        redact_passwords(f"cannot reach {url}: {unquote(secret)} {quote(unquote(secret), safe='')}", url),
    ]
    with pytest.raises(LabError) as error, store.lock():
        pass
    said.append(str(error.value))
    for text in said:
        assert secret not in text
        assert unquote(secret) not in text


def test_a_password_among_the_options_of_a_url_is_scrubbed_too():
    assert "geheim" not in Store("postgresql://me@host/db?password=geheim&sslmode=require").safe_url


@pytest.mark.parametrize(
    "url", ["redis://:geheim@host/0", "sqlite://", "postgresql://u:geheim@host:notaport/db", "nonsense"]
)
def test_unusable_storage_is_refused_in_a_sentence(url):
    with pytest.raises(LabError) as error:
        Store(url).check()
    assert "geheim" not in str(error.value)
