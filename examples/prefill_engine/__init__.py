"""A small but real hybrid Mixture-of-Experts model whose long prefill streams its experts with strata.

``python -m examples.prefill_engine verify`` shows that grouping dependencies moves no bit of the model's
numbers; ``run`` prefills one prompt; ``arm`` measures one setting and prints JSON for a harness.

Nothing heavy is imported here, so that ``__main__`` may set the number of BLAS threads before NumPy loads.
"""

from __future__ import annotations

from typing import Any

__all__ = ["bench_arm"]


def bench_arm(*args: Any, **options: Any) -> dict[str, Any]:
    """Measure one setting in this process; see `examples.prefill_engine.arm.bench_arm`."""
    from examples.prefill_engine.arm import bench_arm as measure

    return measure(*args, **options)
