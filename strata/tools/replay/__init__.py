"""Replay of a recorded request: the same entries, in the same order, over the rings that it ran with.

`case` reads what was recorded, `pools` makes sources for it, `passes` plays the engine, `run` puts the passes
of all arms in order, and `report` says what came out.
"""

from __future__ import annotations

from strata.tools.replay.case import Case, InputError, load_case
from strata.tools.replay.report import ReplayReport
from strata.tools.replay.run import replay

__all__ = ["Case", "InputError", "ReplayReport", "load_case", "replay"]
