"""How far a step walks through the code: calls into `acmo`, and modules touched, in the third step of a small net.

    python benchmarks/walk.py [--list]

Every Python frame counts that runs code of the package, comprehensions included. torch's fused SGD is counted in the
same way, over `torch.optim`.
"""

import argparse
import sys
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


def trace(make: Callable[..., torch.optim.Optimizer], package: str) -> list[tuple[str, str]]:
    """Return (module, function) of every call into a package during the third step."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    optimizer = make(net.parameters())
    folder, calls = str(Path(package).parent), []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            calls.append((frame.f_code.co_filename.removeprefix(folder + "/"), frame.f_code.co_qualname))

    for t in range(3):
        optimizer.zero_grad()
        net(torch.randn(3, 4)).square().sum().backward()
        sys.setprofile(note if t == 2 else None)
        optimizer.step()
        sys.setprofile(None)
    return calls


def main() -> None:
    """Print calls and modules of every contender; with ``--list`` every call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="print every call")
    options = parser.parse_args()
    for name, (make, package) in CONTENDERS.items():
        calls = trace(make, package)
        print(f"{name:20} {len(calls):4} calls, {len({module for module, _ in calls})} modules")
        for module, function in calls if options.list else []:
            print(f"    {module:28} {function}")


if __name__ == "__main__":
    main()
