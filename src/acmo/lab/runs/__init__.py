"""One run: one optimizer, one setting, one seed, in a folder."""

from acmo.lab.runs.run_folder import run

__all__ = ["run"]
