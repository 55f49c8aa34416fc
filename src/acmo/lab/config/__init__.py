"""What a run and a comparison are: options, settings, grids, schedules."""

from acmo.lab.config.run_options import RunConfig, RunOptions, run_config

__all__ = ["RunConfig", "RunOptions", "run_config"]
