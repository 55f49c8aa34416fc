"""The ways to execute a step. `acmo.ACMo` chooses one."""
