"""``python -m strata``: the same as the ``strata`` command."""

from __future__ import annotations

import sys

from strata.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
