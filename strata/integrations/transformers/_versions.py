"""Which transformers this was tested with."""

from __future__ import annotations

import re

__all__ = ["NEWEST", "OLDEST", "check_version"]

OLDEST = (5, 17)
NEWEST = (5, 24)


def check_version(version: str) -> None:
    """Refuse a transformers outside the tested range.

    Raises
    ------
    ImportError
        With the version and the range.
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    pair = (int(found[1]), int(found[2])) if found else (0, 0)
    if not OLDEST <= pair <= NEWEST:
        raise ImportError(
            f"transformers {version} is not supported: strata.integrations.transformers was tested with "
            f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        )
