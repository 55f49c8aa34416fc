"""Run a function on several ranks, each a process of its own, under gloo, and collect what the ranks return.

Importing torch costs about 2 s a process. So the ranks are forked from one server that has imported it already, which
lives as long as the test process: its first run pays, the others start in milliseconds.
"""

from __future__ import annotations

import contextlib
import functools
import io
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# What nearly every rank imports. The server must not start a thread: a fork of a process with threads may hang.
PRELOADED = [
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.optim",
    "torch.distributed.tensor.parallel",
    "torch._dynamo",  # every optimizer imports it when it is built
    "sklearn.datasets",
    "pytest",
    "acmo",
]
GRACE = 2.0  # seconds that the other ranks get to end by themselves, once one has failed


class RankFailed(RuntimeError):
    """A rank raised, died or hung; the text has its traceback, or the end of what it printed."""


def run_ranks(world: int, function: Callable[..., Any], *args: Any, timeout: float = 120.0) -> list[Any]:
    """Call ``function(*args)`` on ``world`` ranks; returns what each returned, by rank.

    The default process group (gloo) is ready when ``function`` is called, and is destroyed after it: it finds its rank
    with ``dist.get_rank()``. Each rank has one thread and torch's seed 0.

    Args:
      world: how many ranks.
      function: a function of a module, not a lambda or one made inside another: a rank finds it by its name.
      *args: plain data and tensors; each rank gets its own copy.
      timeout: seconds after which every rank is killed.

    Returns:
      Plain data and tensors (what `torch.load` reads with ``weights_only=True``: no DTensor, no class of yours).

    Raises:
      RankFailed: if a rank raised, died or hung. All are killed then.
    """
    if "<" in function.__qualname__:
        raise TypeError(f"a rank cannot find {function.__qualname__} by its name: make it a function of its module")
    context = _server()
    # Hosted here, on a port that the system picks: nobody else can take it in between.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory(prefix="ranks-") as scratch:
        folder = Path(scratch)
        torch.save(args, folder / "args")
        ranks = [
            context.Process(target=_rank, args=(rank, world, function, store.port, timeout, scratch), daemon=True)
            for rank in range(world)
        ]
        for process in ranks:
            process.start()
        try:
            failed = _first_failure(ranks, time.monotonic() + timeout)
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.join()
        if failed is not None:
            raise RankFailed(_story(failed, ranks, folder, timeout))
        return [torch.load(folder / f"result{rank}", weights_only=True) for rank in range(world)]


@functools.cache
def _server() -> Any:
    """What forks the ranks, with its imports done: no timeout counts them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    first = context.Process(target=int)
    first.start()
    first.join()
    return context


def _first_failure(ranks: list[Any], deadline: float) -> int | None:
    """Wait for all; the rank that failed first, once the others had time to end; ``-1`` if they hang."""
    failed = None
    while running := [process for process in ranks if process.exitcode is None]:
        left = deadline - time.monotonic()
        if left <= 0:
            return -1 if failed is None else failed
        wait([process.sentinel for process in running], left)
        if failed is None:
            failed = next((k for k, process in enumerate(ranks) if process.exitcode), None)
            if failed is not None:
                deadline = min(deadline, time.monotonic() + GRACE)
    return failed


def _story(failed: int, ranks: list[Any], folder: Path, timeout: float) -> str:
    # Where one rank raises, its peers often raise as well, since it hung up on them: the earliest error is the cause.
    errors = sorted(folder.glob("error*"), key=lambda path: path.stat().st_mtime_ns)
    if failed >= 0 and ranks[failed].exitcode >= 0 and errors:
        return f"rank {errors[0].name.removeprefix('error')} of {len(ranks)} raised:\n{errors[0].read_text()}"
    output = "".join(f"--- rank {k} printed:\n{_tail(folder / f'output{k}')}\n" for k in range(len(ranks)))
    if failed < 0:
        hanging = [k for k in range(len(ranks)) if not (folder / f"result{k}").exists()]
        return f"rank {hanging} of {len(ranks)} did not end within {timeout:g} s\n{output}"
    return f"rank {failed} of {len(ranks)} died with exit code {ranks[failed].exitcode}\n{output}"


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-4000:] if path.exists() else ""


def _rank(rank: int, world: int, function: Callable[..., Any], port: int, timeout: float, scratch: str) -> None:
    """A rank's whole life."""
    folder = Path(scratch)
    output = os.open(folder / f"output{rank}", os.O_CREAT | os.O_WRONLY)
    os.dup2(output, 1)  # what C++ prints too
    os.dup2(output, 2)
    try:
        result = _call(rank, world, function, port, timeout, torch.load(folder / "args", weights_only=False))
        buffer = io.BytesIO()
        torch.save(result, buffer)
        (folder / f"result{rank}").write_bytes(buffer.getvalue())
    except BaseException:
        with contextlib.suppress(OSError):  # the folder is gone if this rank was given up on
            (folder / f"error{rank}").write_text(traceback.format_exc())
        sys.stderr.flush()
        os._exit(1)  # no destructor of a broken group may hang


def _call(rank: int, world: int, function: Callable[..., Any], port: int, timeout: float, args: Any) -> Any:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    # As torchrun sets them: Accelerate and others read them, though the group is there already.
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)})
    os.environ.update({"LOCAL_WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    patience = timedelta(seconds=timeout + 30)  # the test process gives up first, and tells why; alone, a rank ends too
    store = dist.TCPStore("127.0.0.1", port, is_master=False, timeout=patience)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=patience)
    result = function(*args)
    if dist.is_initialized():
        dist.barrier()  # none hangs up while another still talks
        dist.destroy_process_group()
    return result
