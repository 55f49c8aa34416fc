"""docs/scale.md: its blocks run, its tables are `acmo.scale`'s, whose formulas are what ranks really hold and send."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

import acmo.sharding
from acmo import ACMo, RowACMo, scale
from tests.support import sharded
from tests.support.paths import ROOT
from tests.support.ranks import run_ranks

PAGE = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
ACMO = [{}, {"psi": "sqrt"}, {"momentum_dtype": torch.bfloat16}]  # the kinds of state
ROWS = [{}, {"momentum_dtype": torch.int8}]
DECAYS = [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "decoupled_weight_decay": True}, {"max_grad_norm": 1.0}]


def held(opt: torch.optim.Optimizer) -> int:
    """Bytes of state tensors on this rank, with ACMo's cache of ‖m‖²."""
    local = [acmo.sharding.local(x) for state in opt.state.values() for x in state.values()]
    cached = opt._cache.groups.values() if isinstance(opt, ACMo) else []
    squares = [part.moment_sqs for group in cached for part in group.parts if part.moment_sqs is not None]
    return sum(x.nbytes for x in local) + sum(x.nbytes for x in squares)


def state_of_each() -> list[int]:
    """What the kinds of state of ACMo and RowACMo, SGD's and AdamW's take on this rank after a step, under FSDP2."""
    found = []
    makers: list[Any] = [functools.partial(ACMo, **options) for options in ACMO]
    makers += [functools.partial(RowACMo, **options) for options in ROWS]
    makers += [functools.partial(torch.optim.SGD, momentum=0.9), torch.optim.AdamW]
    for maker in makers:
        net = sharded.Net(torch.float32)
        sharded.lay_out(net, "fsdp", dist.get_world_size())
        opt = maker(net.parameters(), lr=0.1)
        sharded.give(net, [torch.ones(p.shape) for p in net.parameters()])
        opt.step()
        found.append(held(opt))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_state_bytes_are_what_the_fullest_rank_allocates(world: int):
    shapes = [tuple(p.shape) for p in sharded.Net(torch.float32).parameters()]
    said = [scale.state_bytes("acmo", shapes, world), scale.state_bytes("acmo", shapes, world, psi="sqrt")]
    said += [scale.state_bytes("acmo", shapes, world, itemsize=2)]
    said += [scale.state_bytes("rowacmo", shapes, world, itemsize=itemsize) for itemsize in (4, 1)]
    said += [scale.state_bytes(optimizer, shapes, world) for optimizer in ("sgd", "adamw")]
    ranks = run_ranks(world, state_of_each)
    assert ranks[0] == said
    assert all(mine <= most for rank in ranks for mine, most in zip(rank, said, strict=True))


def sent_by_each(layouts: list[str]) -> dict[str, list[list[tuple[str, int]]]]:
    """By layout and kind of decay: the collectives of a step, and the bytes that this rank gives."""
    sent: list[tuple[str, int]] = []

    class Tap:
        def __getattr__(self, name: str) -> Any:
            return getattr(dist, name)

        def all_reduce(self, message: torch.Tensor, group: Any = None) -> None:
            sent.append(("all_reduce", message.nbytes))
            dist.all_reduce(message, group=group)

        def all_gather(self, everyone: list[torch.Tensor], message: torch.Tensor, group: Any = None) -> None:
            sent.append(("all_gather", message.nbytes))
            dist.all_gather(everyone, message, group=group)

    found: dict[str, list[list[tuple[str, int]]]] = {layout: [] for layout in layouts}
    for layout in layouts:
        for options in DECAYS:
            net, opt = sharded.make(layout, options, torch.float32)
            sharded.give(net, [torch.ones(p.shape) for p in net.parameters()])
            acmo.sharding.dist = Tap()  # type: ignore[attr-defined, assignment]
            opt.step()
            acmo.sharding.dist = dist  # type: ignore[attr-defined]
            found[layout].append(list(sent))
            sent.clear()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, 4])
def test_message_bytes_are_what_a_step_sends(world: int):
    cut_twice = {2: "fsdp+tp0", 4: "fsdp+tp1"}[world]
    for rank in run_ranks(world, sent_by_each, ["fsdp", "mixed", cut_twice, "zero"]):
        # 5 tensors, of which the 2 biases are in a group that always decays: coupled, unless the option says not.
        fsdp = [scale.message_bytes(5, decayed) for decayed in (2, 5, 0, 2)]
        assert rank["fsdp"] == [[("all_reduce", size)] for size in fsdp]
        mixed = [scale.message_bytes(2, decayed) for decayed in (1, 2, 0, 1)]  # of the layer that is sharded
        assert rank["mixed"] == [[("all_reduce", size)] for size in mixed]
        assert rank["zero"] == [[("all_gather", scale.gathered_bytes(2))]] * len(DECAYS)
        if world == 4:
            # The tensor-parallel dimension cuts both weights and the bias of the first; FSDP2 cuts everything.
            tp = [scale.message_bytes(3, decayed) for decayed in (1, 3, 0, 1)]
            assert [sorted(sizes) for sizes in rank[cut_twice]] == [
                sorted([("all_reduce", a), ("all_reduce", b)]) for a, b in zip(fsdp, tp, strict=True)
            ]


def test_the_tables_are_those_of_the_formulas():
    table = re.search(r"compares -->\n(.*?)\n<!-- end -->", PAGE, re.DOTALL)
    assert table is not None
    assert table[1] == scale.tables(), "run python -m acmo.scale and paste what it prints"


def test_acmo_and_rowacmo_share_a_column_of_the_table():
    for shapes in scale.MODELS.values():
        for ranks in scale.RANKS:
            both = [scale.state_bytes(optimizer, shapes, ranks) for optimizer in ("acmo", "rowacmo")]
            assert both[0] - both[1] == 8 * len(shapes)
            assert scale.size(both[0]) == scale.size(both[1])


def test_models_have_the_published_sizes():
    sizes = {name: sum(map(math.prod, shapes)) for name, shapes in scale.MODELS.items()}
    assert sizes == {"7 B": 6_738_415_616, "70 B": 70_553_706_496, "405 B": 405_853_388_800}


def run_the_page() -> str:
    """Its blocks, in order, as one program on each rank; returns what they print."""
    compiler = torch.compile
    torch.compile = functools.partial(compiler, backend="eager")  # type: ignore[assignment]  # dynamo, but no C++
    names: dict[str, object] = {"__name__": "page"}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
            exec(compile(block, "docs/scale.md", "exec"), names)
    return out.getvalue()


@pytest.mark.slow
def test_blocks_of_scale_md_run_and_print_the_errors_shown():
    errors = [text.strip() for text in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)]
    assert len(errors) == 2
    for printed in run_ranks(4, run_the_page):
        lines = printed.splitlines()
        assert len(lines) == 3
        assert float(lines[0]) > 0
        assert lines[1] == errors[0]
        assert lines[2].startswith(errors[1])


def scaled() -> list[tuple[float, int]]:
    """Three steps under FSDP2 and a GradScaler; in the second, rank 1 overflows. The scale and the skipped steps."""
    net, opt = sharded.make("fsdp", {}, torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    scaler.scale(torch.ones(()))
    found = []
    for t, grads in enumerate(sharded.gradients(net, 3)):
        sharded.give(net, grads)
        if t == 1 and dist.get_rank() == 1:
            local = [acmo.sharding.local(p.grad) for p in net.parameters() if p.grad is not None]
            next(g for g in local if g.numel()).view(-1)[0] = torch.inf
        scaler.step(opt)
        scaler.update()
        found.append((scaler.get_scale(), opt.skipped_steps))
    return found


@pytest.mark.slow
def test_a_scaler_on_shards_agrees_about_an_overflow_on_one_rank():
    assert run_ranks(2, scaled) == [[(8.0, 0), (4.0, 1), (4.0, 1)]] * 2


def test_files_that_it_links_to_exist():
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", PAGE) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
