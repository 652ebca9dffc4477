"""Files that reports go to: whole, or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

__all__ = ["unwritable", "write_json", "write_whole"]


def write_whole(path: str | Path, text: str) -> None:
    """Write a text file in one step: a reader sees the old file or the whole new one.

    Raises
    ------
    OSError
        The file cannot be written; the old one, if any, is as it was.
    """
    path = Path(path)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp's own mode is for the owner alone
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(path: str | Path, data: Any) -> None:
    """Write an object as indented JSON; see `write_whole`."""
    write_whole(path, json.dumps(data, indent=2) + "\n")



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
