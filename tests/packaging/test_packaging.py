"""The package as it is installed and built: what it needs, what it weighs, what is inside."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import acmo
from tests.support.paths import ROOT

# As if they were not installed: torch asks of some whether they are there, and must be told no.
BLOCK = """
import sys
from importlib.machinery import PathFinder

class WithoutExtras(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in BLOCKED else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutExtras
"""

STEP = """
import torch, acmo
w = torch.nn.Parameter(torch.ones(3))
opt = acmo.ACMo([w], lr=0.1)
w.grad = torch.ones(3)
opt.step()
assert w.allclose(torch.full((3,), 0.9)), w
"""
VERSION = metadata.version("acmo")


def run(code: str) -> str:
    """Run code in a Python of its own; fail with what it wrote to stderr."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def modules_of_extras() -> set[str]:
    """Every module that an extra brings and that torch and numpy, acmo's requirements, do not bring themselves."""
    requirements = metadata.requires("acmo") or []
    extra = {_name(r) for r in requirements if "extra ==" in r} - {"acmo"}
    assert {"optuna", "transformers", "jax", "pytest"} <= extra  # the metadata is what we take it for
    core = {"torch", "numpy"} | {_name(r) for r in metadata.requires("torch") or []}
    modules = {name.replace("-", "_") for name in extra - core}
    for module, distributions in metadata.packages_distributions().items():
        if {_name(d) for d in distributions} & (extra - core):
            modules.add(module)
    return {m for m in modules if not m.startswith("_")}


def _name(requirement: str) -> str:
    found = re.match(r"[\w.-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found.group()).lower()


def test_version_is_the_metadatas() -> None:
    assert acmo.__version__ == metadata.version("acmo")


def test_the_citation_names_this_version() -> None:
    cited = re.search(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    assert cited is not None
    assert cited.group(1) == metadata.version("acmo")


def test_a_step_needs_torch_and_numpy_alone() -> None:
    blocked = modules_of_extras()
    assert {"sklearn", "scipy", "rich", "optuna"} <= blocked
    run(f"BLOCKED = {blocked!r}\n{BLOCK}\n{STEP}")


def test_import_adds_no_package_to_what_torch_loads() -> None:
    """Such as sympy, which torch loads when it compiles and which takes as long to import as all of acmo's own."""
    added = run(
        "import sys, torch, numpy; before = set(sys.modules); import acmo\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    ).split()
    assert "acmo" in added
    assert set(added) - sys.stdlib_module_names <= {"acmo", "torch", "numpy"}


def test_import_takes_a_fraction_of_the_time_of_torch() -> None:
    code = """from time import process_time as now
    start = now(); import torch, numpy; middle = now(); import acmo; print((now() - middle) / (middle - start))"""
    assert float(run("\n".join(map(str.strip, code.splitlines())))) < 0.25


@pytest.mark.slow
def test_the_demo_trains_all_three_optimizers() -> None:
    demo = [sys.executable, str(ROOT / "examples" / "digits.py"), "--epochs", "2"]
    done = subprocess.run(demo, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "120"})
    assert done.returncode == 0, done.stderr
    (first, second) = (re.findall(r"[\d.]+", line) for line in done.stdout.splitlines() if re.match(r"│ +\d", line))
    assert len(first) == 1 + 2 * 3
    losses = list(zip(first[1::2], second[1::2], strict=True))
    assert all(float(after) < float(before) for before, after in losses)
    assert all(float(accuracy) > 50 for accuracy in second[2::2])  # chance is 10 %


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the project with things in it that must not be packed."""
    ignore = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.so")
    tree = Path(shutil.copytree(ROOT, tmp_path / "acmo", ignore=ignore))
    for litter in (".venv/bin/python", "runs/digits/metrics.jsonl", "src/acmo/__pycache__/x.pyc", "data/train.bin"):
        (tree / litter).parent.mkdir(parents=True, exist_ok=True)
        (tree / litter).write_text("litter")
    return tree


def build(tree: Path, *flags: str, **env: str) -> list[Path]:
    """Build in isolation, as pip does; return what was built."""
    command = [sys.executable, "-m", "build", "-v", "--outdir", str(tree / "dist"), *flags, str(tree)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    log = done.stdout + done.stderr
    assert done.returncode == 0, log
    collected = set(re.findall(r"Collecting ([\w-]+)", log))
    assert "scikit-build-core" in collected, log  # in isolation: the build brought its own
    assert "torch" not in collected
    return sorted((tree / "dist").iterdir())


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sources() -> set[str]:
    return {p.relative_to(ROOT / "src").as_posix() for p in (ROOT / "src" / "acmo").rglob("*.py")} | {"acmo/py.typed"}


def assert_wheel_holds_the_package_alone(names: set[str]) -> None:
    assert sources() <= names
    assert f"acmo-{VERSION}.dist-info/licenses/LICENSE" in names
    assert all(n.startswith(("acmo/", f"acmo-{VERSION}.dist-info/")) for n in names), names
    assert not {n for n in names if n.endswith((".c", ".h", ".pyc"))}


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="needs a C compiler")
def test_sdist_builds_one_wheel_with_the_kernel_for_every_python(tree: Path) -> None:
    sdist, wheel = sorted(build(tree), key=lambda path: path.suffix)
    with tarfile.open(sdist) as archive:
        files = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "CMakeLists.txt", "LICENSE", "README.md", "src/acmo/native/kernel.c"} <= files
    assert not {name for name in files if name.startswith((".venv", ".git/", "runs", "data", "build", "dist"))}
    assert not {name for name in files if name.endswith((".so", ".pyc"))}

    assert re.fullmatch(rf"acmo-{re.escape(VERSION)}-py3-none-(?!any)\w+\.whl", wheel.name)
    names = names_in(wheel)
    assert_wheel_holds_the_package_alone(names)
    assert [n for n in names if n.startswith("acmo/native/libacmo_kernel.")]


@pytest.mark.slow
def test_without_a_compiler_the_wheel_is_pure(tree: Path) -> None:
    (wheel,) = build(tree, "--wheel", CC="/nonexistent", CXX="/nonexistent")
    assert wheel.name == f"acmo-{VERSION}-py3-none-any.whl"
    names = names_in(wheel)
    assert_wheel_holds_the_package_alone(names)
    assert not [n for n in names if "libacmo_kernel" in n]
