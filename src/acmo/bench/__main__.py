"""``python -m acmo.bench``: the speed of ACMo's step beside torch's optimizers, in one process, on the CPU."""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

import acmo
from acmo import native
from acmo.bench.contenders import COMPILED, contenders
from acmo.bench.measure import Ratio
from acmo.bench.run import SetResult, bfloat16, linear_cost, measure_set
from acmo.bench.sets import SETS, ParameterSet
from acmo.bench.spectral import measure_spectral, report_spectral
from acmo.bench.table import report
from acmo.bench.targets import HALF, LINEAR, verdicts
from acmo.gpu_test import build_contenders, make_params, time_steps

QUICK = ("10k", "resnet50")
ROUNDS_LARGE, ROUNDS_SMALL, ROUNDS_PAIR = 30, 400, 20  # small sets cost little and scatter much
ROUNDS_SPECTRAL = 7


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, and write the JSON. Returns the exit code: 0, whether the targets are met or not."""
    options = parse(arguments)
    if options.device == "cuda":
        return bench_cuda(options.sets)
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.spectral:
        for which in options.sets:
            for line in report_spectral(measure_spectral(which, options.tokens, options.rounds or ROUNDS_SPECTRAL)):
                print(line)
        return 0
    about = machine()  # before we are the load ourselves
    results: list[SetResult] = []
    for which in options.sets:
        bar = Bar(f"[{len(results) + 1}/{len(options.sets)}] {which.label}")
        chosen = contenders(options.compiled, targets_only=options.quick)
        results.append(measure_set(which, chosen, rounds(options, which), bar))
        bar.close()
    keys, pair_rounds = {which.key for which in options.sets}, options.rounds or ROUNDS_PAIR
    pairs: dict[str, Ratio | None] = {}
    for key, name, compare in (("transformer", HALF, bfloat16), ("100m", LINEAR, linear_cost)):
        if key in keys:
            bar = Bar(name)
            pairs[name] = compare(pair_rounds)
            bar.close()
    found = verdicts(results, pairs)
    if options.json:
        content = {
            "machine": about,
            "threads": torch.get_num_threads(),
            "sets": {result.key: asdict(replace(result, times=[])) for result in results},
            "pairs": {name: ratio and asdict(ratio) for name, ratio in pairs.items()},
            "targets": [{**asdict(verdict), "met": verdict.met, "said": verdict.said} for verdict in found],
        }
        options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for line in report(about, results, found, torch.get_num_threads(), options.markdown):
        print(line)
    return 0


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = argparse.ArgumentParser(prog="python -m acmo.bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help=f"about 20 s: what the targets compare, on {','.join(QUICK)}"
    )
    parser.add_argument("--sets", help=f"some of {','.join(SETS)}")
    parser.add_argument("--rounds", type=int, help="rounds per set (a full run: 30, for small sets 400)")
    parser.add_argument("--threads", type=int, help="threads (default: torch's)")
    parser.add_argument("--compiled", action="store_true", help=f"also {COMPILED!r}; compiling takes minutes")
    parser.add_argument("--spectral", action="store_true", help="only SpectralACMo, beside Muon with AdamW")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per step, for --spectral (default: 2048)")
    parser.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all numbers there as well")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda: time steps by CUDA events")
    return parser


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, checked; ``sets`` are those to measure."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    default: Sequence[str] = ("transformer",) if options.spectral else QUICK if options.quick else list(SETS)
    keys = options.sets.split(",") if options.sets else default
    unknown = [key for key in keys if key not in SETS]
    if unknown:
        parser.error(f"--sets knows {', '.join(SETS)}, got {', '.join(map(repr, unknown))}")
    for name in ("rounds", "threads", "tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} must be at least 1, got {value}")
    options.sets = [SETS[key] for key in keys]
    return options


def bench_cuda(sets: Sequence[ParameterSet]) -> int:
    """Time steps on a GPU and print a table; return 2 where there is none."""
    if not torch.cuda.is_available():
        print("--device cuda needs a GPU that torch can use, and torch.cuda.is_available() is False", file=sys.stderr)
        return 2
    device = torch.device("cuda")
    print(f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, acmo {acmo.__version__}")
    for which in sets:
        contenders = build_contenders(make_params(device, which.shapes))
        for name, opt in contenders.items():
            print(f"{which.label:24} {name:14} {time_steps(opt.step, device):8.3f} ms", flush=True)
    return 0


def rounds(options: argparse.Namespace, which: ParameterSet) -> int:
    return int(options.rounds or (ROUNDS_LARGE if which.large else ROUNDS_SMALL))


def machine() -> dict[str, str]:
    """Where and with what this runs."""
    kernel = native.kernel()
    load = f", load {os.getloadavg()[0]:.1f} before the run" if hasattr(os, "getloadavg") else ""
    return {
        "machine": f"{processor()}, {os.cpu_count()} CPUs, {platform.system()} {platform.machine()}{load}",
        "threads": str(torch.get_num_threads()),
        "software": f"acmo {acmo.__version__}, torch {torch.__version__}, Python {platform.python_version()}",
        "kernel": f"{kernel.isa}" if kernel else f"not there, so nothing fused. {native.why_missing()}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown processor")


class Bar:
    """Progress on one line of stderr; where that is no terminal, a line when it is done."""

    def __init__(self, label: str) -> None:
        self._label, self._begin, self._live = label, time.monotonic(), sys.stderr.isatty()
        self(0.0)

    def __call__(self, fraction: float) -> None:
        if self._live:
            full = int(30 * fraction)
            print(
                f"\r{self._label} [{'#' * full}{'.' * (30 - full)}] {fraction:4.0%}",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def close(self) -> None:
        clear = "\r\033[K" if self._live else ""
        print(f"{clear}{self._label}: {time.monotonic() - self._begin:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
