"""What every report is: lines and tables to read, as text or as Markdown, and the same as plain data."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import strata
from strata.tools.command import FAILED, OK, complain, put
from strata.tools.files import write_json, write_whole
from strata.tools.progress import Progress
from strata.tools.tables import Table

__all__ = ["Report", "environment"]


class Report:
    """What a command found. Subclasses give its parts and its data."""

    @property
    def ok(self) -> bool:
        """The verdict: whether what was asked for is so. The command's exit status follows it."""
        return True

    def parts(self) -> Sequence[str | Table]:
        """Return lines of text and tables, in order. An empty line separates paragraphs."""
        raise NotImplementedError

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON wants it."""
        raise NotImplementedError

    def __str__(self) -> str:
        lines: list[str] = []
        for part in self.parts():
            lines += part.text() if isinstance(part, Table) else [part]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the parts in Markdown: each line a paragraph, or an item of a list."""
        lines: list[str] = []
        for part in self.parts():
            if not part:
                continue
            block = part.markdown() if isinstance(part, Table) else [part]
            if lines and not (lines[-1].startswith("- ") and block[0].startswith("- ")):
                lines.append("")
            lines += block
        return "\n".join(lines) + "\n"

    def write(self, path: str | Path) -> None:
        """Write the data as JSON; see `strata.tools.files.write_whole` for how, and what it raises."""
        write_json(path, self.as_dict())

    def hand_over(self, command: str, progress: Progress, *, json: str | None = None,
                  markdown: str | None = None) -> int:
        """Write and print the report, and return the command's exit status.

        Parameters
        ----------
        command : str
            For messages.
        progress : Progress
        json, markdown : str, optional
            Places for files. They are written first: a full standard output shall not lose them.
        """
        progress.clear()
        problems: list[OSError] = []
        for path, write in ((markdown, lambda where: write_whole(where, self.markdown())), (json, self.write)):
            if path is not None:
                try:
                    write(path)
                except OSError as problem:
                    problems.append(problem)
        put(self)
        for failed in problems:
            complain(command, progress, failed, FAILED)
        return OK if self.ok and not problems else FAILED


def environment(about: Mapping[str, object] | None = None) -> dict[str, Any]:
    """Return what a report says of programs and machine.

    Parameters
    ----------
    about : mapping, optional
        `strata.runtime.describe`.
    """
    versions: dict[str, object] = {"strata": strata.__version__}
    for package in ("hip-python", "numpy"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    versions["python"] = platform.python_version()
    host = {"system": platform.platform(), "processors": os.cpu_count()}
    if about is None:
        return {"versions": versions, "host": host}
    return {
        "runtime": about.get("runtime"),
        "device": about.get("device"),
        "library": about.get("library"),
        "versions": {**versions, "runtime": about.get("runtime_version"), "driver": about.get("driver_version")},
        "host": host,
    }
