"""The race is a program of the checkout, not of the package: find it, whatever the import mode."""

from __future__ import annotations

import sys
from pathlib import Path

for folder in (Path(__file__).resolve().parents[2], Path(__file__).resolve().parent):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
