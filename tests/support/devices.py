"""Device nodes that a test may lose: as root, a writer that replaces what it is given takes the machine's away."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

__all__ = ["device"]

_MINORS = {"null": 3, "full": 7}


def device(name: str, folder: Path) -> Path:
    """Return /dev/null or /dev/full where it cannot be replaced, else a node of its own kind in the folder."""
    if os.geteuid() != 0 and not os.access("/dev", os.W_OK):
        return Path("/dev") / name
    node = folder / name
    try:
        os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, _MINORS[name]))
        with open(node, "w"):
            pass
    except OSError:
        pytest.skip("this root makes no device nodes, and shall not try the machine's own")
    return node
