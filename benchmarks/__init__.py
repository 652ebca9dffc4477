"""What strata itself costs, as ratios of one run on one machine.

Run by hand from the repository's root, with strata installed: ``python -m benchmarks.planner``, ``.issuing``,
``.engine_side``, ``.requests``, ``.memory``. Each prints what was measured beside its target. They are no
tests: a number is only worth something beside others of the same run, on a machine that does nothing else.
"""
