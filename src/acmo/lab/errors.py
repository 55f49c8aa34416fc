"""The one error that is meant for users."""


class LabError(Exception):
    """A sentence: what was wrong, with the value, and what to do; the command line prints it and exits with 2."""


def missing_extra(module: str, extra: str = "lab") -> LabError:
    """What to say where a package of an extra is not installed."""
    return LabError(f'{module} is not installed; get it with: pip install "acmo[{extra}]"')
