"""Examples of engines that embed strata. They run from a checkout: ``python -m examples.prefill_engine``.

Python then looks into the checkout first, whose folder ``strata`` holds sources. Unless they were compiled in place,
the installed package is meant: the checkout moves to the end of the path.
"""

from __future__ import annotations

import sys
from pathlib import Path

_root = Path(__file__).resolve().parents[1]
if not any((_root / "strata").glob("_hip.*.so")):
    _checkout = [entry for entry in sys.path if Path(entry or ".").resolve() == _root]
    sys.path[:] = [entry for entry in sys.path if entry not in _checkout] + _checkout
