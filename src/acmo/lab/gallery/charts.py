"""Charts of what is measured: state per parameter, a step's time beside its rivals, the results' questions and curves.

``python -m acmo.lab.gallery.charts`` in a clone draws them and writes docs/pictures.md, with alt texts.
"""

import argparse
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from acmo import ACMo, RowACMo, SpectralACMo, param_groups
from acmo.lab import atomic
from acmo.lab.gallery import question_charts
from acmo.lab.gallery.canvas import ACMO_COLOUR, INK, LINE, SOFT, content, figure
from acmo.lab.report.results_tables import FIGURES
from acmo.rivals import SM3

NETS = ("ResNet-50", "Transformer-base", "GPT-2 small")
STEPS = (
    "SGD-momentum fused",
    "AdamW fused",
    "AdamW fused + clip_grad_norm_",
    "ACMo fused",
    "ACMo fused, max_grad_norm",
    "RowACMo fused",
)


class Bar(NamedTuple):
    """Hold one bar: its label and its length."""

    label: str
    value: float


def measure_state() -> list[Bar]:
    """Return the bytes of optimizer state per parameter after one step of a small float32 net."""
    makers: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
        "AMSGrad": lambda net: torch.optim.Adam(net.parameters(), amsgrad=True),
        "Adam, AdamW": lambda net: torch.optim.AdamW(net.parameters()),
        "SM3": lambda net: SM3(net.parameters(), lr=0.1),
        "SGD-momentum": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9),
        "ACMo": lambda net: ACMo(net.parameters()),
        "SpectralACMo": lambda net: SpectralACMo(param_groups(net, scopes=True)),
        "RowACMo": lambda net: RowACMo(param_groups(net, scopes=True)),
        "ACMo, m in bfloat16": lambda net: ACMo(net.parameters(), momentum_dtype=torch.bfloat16),
        "RowACMo, m in int8": lambda net: RowACMo(param_groups(net, scopes=True), momentum_dtype=torch.int8),
    }
    bars = []
    for label, make in makers.items():
        net = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512))
        opt = make(net)
        net(torch.ones(1, 512)).sum().backward()
        opt.step()
        tensors = [value for state in opt.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
        held = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        bars.append(Bar(label, held / sum(p.numel() for p in net.parameters())))
    return bars


def read_step_times(benchmarks: str) -> dict[str, list[Bar]]:
    """Return, per net, the time of a step over fused SGD-momentum's, from the tables of benchmarks/README.md."""
    found = {}
    for net in NETS:
        table = re.search(rf"^#{{3,4}} {re.escape(net)}:.*?\n\n(\|.*?)\n\n", benchmarks, re.MULTILINE | re.DOTALL)
        if table is None:
            continue
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in table[1].splitlines())
        times = {row[0]: float(row[head.index("/ SGD")]) for row in rows}
        found[net] = [Bar(label, times[label]) for label in STEPS if label in times]
    return found


def draw_bars(axes: Any, bars: Sequence[Bar], form: str) -> None:
    """Draw horizontal bars from top to bottom, ours in ACMo's colour, each with its value."""
    ours = [ACMO_COLOUR if "ACMo" in bar.label else SOFT for bar in bars]
    drawn = axes.barh([bar.label for bar in bars], [bar.value for bar in bars], color=ours, height=0.66)
    axes.bar_label(drawn, [form.format(bar.value) for bar in bars], padding=3, color=INK)
    axes.invert_yaxis()
    axes.margins(x=0.14)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.grid(axis="x", color=LINE, linewidth=0.5)
    axes.set_axisbelow(True)


def draw_state(bars: Sequence[Bar]) -> bytes:
    """Return the chart of state per parameter as SVG."""
    with figure(7.2, 3.2) as drawn:
        axes = drawn.subplots()
        draw_bars(axes, bars, "{:.1f}")
        axes.set_xlabel("bytes of optimizer state per parameter, float32 parameters")
        return content(drawn, "svg")


def draw_step_times(times: dict[str, list[Bar]]) -> bytes:
    """Return the chart of a step's time as SVG, one panel per net."""
    with figure(10.4, 2.6) as drawn:
        panels = drawn.subplots(1, len(times), sharey=True, squeeze=False)[0]
        for i, (axes, (net, bars)) in enumerate(zip(panels, times.items(), strict=True)):
            draw_bars(axes, bars, "{:.2f}")
            if i:
                axes.invert_yaxis()  # shared: the first panel has turned it already
            axes.set_title(net)
            axes.set_xlabel("time of a step / SGD-momentum, fused")
        return content(drawn, "svg")


def describe(bars: Sequence[Bar], form: str) -> str:
    """Return the bars in words, for an alt text."""
    return "; ".join(f"{bar.label} {form.format(bar.value)}" for bar in bars)


def describe_curves(curves: Path) -> str:
    """Return the means of the test scores of the task whose learning curves a file shows, for its alt text."""
    name = curves.stem.removeprefix("curves-")
    tasks = json.loads((curves.parent / "summary.json").read_bytes())["tasks"]
    task = next(task for task in tasks if name.startswith(task["task"].partition(":")[0] + "-"))
    scores = ", ".join(f"{row['title']} {row['test']['mean']:.4g}" for row in task["rows"] if row.get("test"))
    return f"Learning curves of {task['task']}. Mean test {task['metric']}: {scores}"


def find_curves(docs: Path) -> list[Path]:
    """Return the published learning curves; those of the archive only where there are no others."""
    found = sorted(docs.glob("results/**/curves-*.svg"))
    return [path for path in found if "archive" not in path.parts] or found


PAGE = """\
# In pictures

Made by `python -m acmo.lab.gallery.charts` from the optimizers themselves, from the tables of
[benchmarks](../benchmarks/README.md) and from the published [results](results/README.md).

## State per parameter

![Bytes of optimizer state per parameter: {state}](images/state.svg)

The bytes of all tensors in `opt.state` after one step, over the number of parameters.

## Time of a step

![Time of a step over that of SGD-momentum, fused. {times}](images/steps.svg)

Two CPU threads, float32. The last full run in [benchmarks](../benchmarks/README.md) names the machine and the date.

## Directions

![The cosine between step and gradient at every step in a noisy valley: ACMo's stays above √(1 − β²), the others' change sign](images/angles.svg)

Made by `acmo gallery`; [How it works](how.md#paths) explains it.

## Learning curves
"""  # noqa: E501


def render_page(docs: Path, state: Sequence[Bar], times: dict[str, list[Bar]]) -> str:
    """Return docs/pictures.md: the charts and the published learning curves, each with an alt text."""
    steps = " ".join(f"{net}: {describe(bars, '{:.2f}')}." for net, bars in times.items())
    page = PAGE.format(state=describe(state, "{:.1f}"), times=steps)
    for curves in find_curves(docs):
        where = curves.parent.relative_to(docs).as_posix()
        page += f"""
### {where.removeprefix("results/")}: {curves.stem.removeprefix("curves-")}

![{describe_curves(curves)}]({where}/{curves.name})

[Tables, settings and runs]({where}/README.md)
"""
    return page


def write(root: Path) -> list[Path]:
    """Draw the charts of a clone and write the page that shows them.

    Args:
      root: the clone, with docs/ and benchmarks/.

    Returns:
      What was written.
    """
    docs = root / "docs"
    state = measure_state()
    times = read_step_times((root / "benchmarks" / "README.md").read_text(encoding="utf-8"))
    contents = {
        docs / "images" / "state.svg": draw_state(state),
        docs / "images" / "steps.svg": draw_step_times(times),
        docs / "pictures.md": render_page(docs, state, times).encode(),
        **question_charts.draw_all(docs / "results"),
    }
    for path, data in contents.items():
        path.parent.mkdir(exist_ok=True)
        atomic.write(path, data)
    for path in (docs / "results" / FIGURES).glob("*.svg"):
        if path not in contents:  # of a question that was reworded
            path.unlink()
    return list(contents)


def main(args: Sequence[str] | None = None) -> None:
    """Read the options, draw, and print the names of the files."""
    parser = argparse.ArgumentParser("python -m acmo.lab.gallery.charts", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(), help="the clone (default: the working folder)")
    for path in write(parser.parse_args(args).root):
        print(path)


if __name__ == "__main__":
    main()
