"""torch's own checks of an optimizer, for ours.

pytorch runs every optimizer of `torch.optim` through `test/test_optim.py`, driven by the `OptimizerInfo`s of
`torch.testing._internal.common_optimizers`. Only the latter is installed with torch, so the bodies here are ours, one
for each of those checks, often stricter (bits instead of tolerances). `registry.py` says which optimizers go through
them; torch's own SGD and Adam do too, since a suite that fails for them would be wrong.

Not here, because they need what a test machine does not have: several devices (`*_multigpu`,
`test_mixed_device_dtype` over devices, `test_fused_cpu_matches_cuda`, `test_cpu_load_state_dict`), 64 GB
(`test_foreach_large_tensor`, `test_fused_large_tensor`), or an optimizer that insists on a closure
(`test_second_order_optims_return_consistent_types`).
"""
