"""Places that commands are told to write to."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["unwritable"]


def unwritable(option: str, path: str | None) -> str | None:
    """Say what is wrong with a place for a file, before the work rather than after it; None where nothing is.

    Parameters
    ----------
    option : str
        Name of the option, for the sentence.
    path : str or None
        Its value.
    """
    if path is None:
        return None
    folder = Path(path).parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        return f"{option} is {path!r}; the folder {str(folder)!r} cannot be written to"
    if Path(path).is_dir():
        return f"{option} is {path!r}, which is a folder; a file is wanted"
    return None
