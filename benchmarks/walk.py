"""How far a step, and a comparison that is done already, walk through the code: calls into `acmo`, modules touched.

    python benchmarks/walk.py [--list]          the third step of a small net
    python benchmarks/walk.py --lab [FOLDER]    acmo compare digits --grid lr, of which all is done, and acmo report

Every Python frame counts that runs code of the package, comprehensions included. torch's fused SGD is counted in the
same way, over `torch.optim`. Frames of the page's template, which Jinja compiles, count too. The comparison is
`acmo compare digits --grid lr`, run first if FOLDER does not hold it (minutes).
"""

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import acmo

CONTENDERS: dict[str, tuple[Callable[..., torch.optim.Optimizer], str]] = {
    "ACMo, C kernel": (lambda p: acmo.ACMo(p, fused=True), acmo.__file__),
    "ACMo, foreach": (lambda p: acmo.ACMo(p, foreach=True), acmo.__file__),
    "ACMo, reference": (lambda p: acmo.ACMo(p, foreach=False, fused=False), acmo.__file__),
    "torch's fused SGD": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), torch.optim.__file__),
}
Call = tuple[str, str]


class Trace:
    """Record (module, function) of every call into a package while it is entered.

    Args:
      package: the path of a file in its top folder.
    """

    def __init__(self, package: str) -> None:
        self.folder, self.calls = str(Path(package).parent), list[Call]()

    def __enter__(self) -> "Trace":
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: Any, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(self.folder):
            self.calls.append((file.removeprefix(self.folder + "/"), frame.f_code.co_qualname))

    def __str__(self) -> str:
        return f"{len(self.calls):5,} calls, {len({module for module, _ in self.calls})} modules"


def trace_step(make: Callable[..., torch.optim.Optimizer], package: str) -> Trace:
    """Return every call into a package during the third step."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = make(net.parameters())
    trace = Trace(package)
    for t in range(3):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        if t == 2:
            with trace:
                optimizer.step()
        else:
            optimizer.step()
    return trace


def run_command(*arguments: str) -> float:
    """Run ``acmo`` in this process, and return the seconds of CPU that it took."""
    from acmo.lab.cli import main

    sys.argv, start = ["acmo", *arguments], time.process_time()
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        stdout, sys.stdout = sys.stdout, nowhere
        try:
            main()
        except SystemExit as end:
            if end.code:
                raise
        finally:
            sys.stdout = stdout
    return time.process_time() - start


def walk_lab(folder: Path, show: bool) -> None:
    """Print what it takes to find a comparison done, and to report on it."""
    compare = ("compare", "--preset", "digits", "--grid", "lr", "--out", str(folder), "-q")
    run_command(*compare)
    for arguments in (compare, ("report", str(folder))):
        trace = Trace(acmo.__file__)
        with trace:
            run_command(*arguments)
        print(f"acmo {arguments[0]:8} {trace}; untraced {run_command(*arguments):.2f} s of CPU")
        for (module, function), count in Counter(trace.calls).most_common(40 if show else 0):
            print(f"    {count:5} {module:36} {function}")


def main() -> None:
    """Print calls and modules of every contender; with ``--list`` every call."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the calls")
    parser.add_argument("--lab", nargs="?", const="", metavar="FOLDER", help="walk through the lab instead")
    options = parser.parse_args()
    if options.lab is not None:
        with tempfile.TemporaryDirectory() as temporary:
            walk_lab(Path(options.lab or temporary), options.list)
        return
    for name, (make, package) in CONTENDERS.items():
        trace = trace_step(make, package)
        print(f"{name:20} {trace}")
        for module, function in trace.calls if options.list else []:
            print(f"    {module:28} {function}")


if __name__ == "__main__":
    main()
