"""Without the packages of ``acmo[lab]`` the tests of the lab are not collected."""

from importlib.util import find_spec

MISSING = [name for name in ("optuna", "pydantic", "rich", "sklearn", "typer") if find_spec(name) is None]
collect_ignore_glob = ["*"] if MISSING else []


def pytest_report_header() -> str | None:
    """Name the packages that are missing."""
    return (
        f'tests/lab is left out: {", ".join(MISSING)} missing; get it with: pip install "acmo[lab]"'
        if MISSING
        else None
    )
