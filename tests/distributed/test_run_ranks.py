"""What runs the ranks of other tests: it must not hide a failure, and must not hang."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.support.ranks import RankFailed, run_ranks


def add(x: torch.Tensor, text: str) -> dict[str, object]:
    total = x * (dist.get_rank() + 1)
    dist.all_reduce(total)
    return {"total": total, "text": f"{text}{dist.get_rank()}", "threads": torch.get_num_threads()}


def misbehave(how: str) -> None:
    if dist.get_rank() == 1:
        if how == "raise":
            raise ValueError("the third mesh is missing")
        if how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        print("rank 1 is lost", flush=True)
        time.sleep(100)
    dist.barrier()  # which rank 1 never reaches


def test_every_rank_returns_its_own_and_they_can_talk():
    results = run_ranks(3, add, torch.ones(2, dtype=torch.float64), "rank ")
    assert [r["text"] for r in results] == ["rank 0", "rank 1", "rank 2"]
    assert all(r["total"].tolist() == [6, 6] and r["threads"] == 1 for r in results)


@pytest.mark.parametrize(
    ("how", "told"),
    [("raise", "rank 1 of 2 raised(.|\n)*the third mesh is missing"),
     ("die", "rank 1 of 2 died with exit code -9"),
     ("hang", r"did not end within 2 s(.|\n)*rank 1 is lost")],
)  # fmt: skip
def test_failing_rank_ends_all_and_its_traceback_is_shown(how: str, told: str):
    start = time.monotonic()
    with pytest.raises(RankFailed, match=told):
        run_ranks(2, misbehave, how, timeout=2)
    assert time.monotonic() - start < 15


def test_a_function_that_a_rank_could_not_find_is_refused():
    with pytest.raises(TypeError, match="by its name"):
        run_ranks(2, lambda: None)
