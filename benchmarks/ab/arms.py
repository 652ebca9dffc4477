"""An arm: a name, and a command line that runs it in one process."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from typing import Any

from benchmarks.ab.errors import InputError, WorkloadError
from strata.settings import BatchSettings

__all__ = ["Arm", "check_command"]

_SETTINGS = "{settings}"
_COUNTS = ("{warmups}", "{samples}")
_LIKE_SETTINGS = re.compile(r"[\d\s,/]+")


@dataclass(frozen=True)
class Arm:
    """What is compared with other arms: the workload at some settings, or a peer, which has none.

    Attributes
    ----------
    name : str
        In reports and messages.
    template : str
        A command line, split as a shell would. ``{settings}`` stands for ``C,S,SC``, ``{warmups}`` and
        ``{samples}`` for counts, ``{python}`` for this interpreter; other braces are left alone.
    settings : BatchSettings or None
        None of a peer.
    """

    name: str
    template: str
    settings: BatchSettings | None = None

    @classmethod
    def at(cls, settings: BatchSettings, template: str) -> Arm:
        """Make the arm of a workload at some settings; its name is those: ``8/16/16``."""
        return cls("/".join(map(str, _batches(settings))), template, settings)

    @classmethod
    def peer(cls, text: str) -> Arm:
        """Make an arm of ``NAME=COMMAND``.

        Raises
        ------
        InputError
            The name is empty or looks like settings, or the command lacks a place.
        """
        name, equals, template = text.partition("=")
        name = name.strip()
        if not equals or not name or not name.isprintable():
            raise InputError(f"peer is {text!r:.200}: NAME=COMMAND is wanted, with a name that can be printed")
        if _LIKE_SETTINGS.fullmatch(name):
            raise InputError(f"peer {name!r} is called as settings are: --settings makes arms of the workload")
        if _SETTINGS in template:
            raise InputError(f"peer {name!r} has a place for {_SETTINGS}: a peer has none")
        check_command(f"the command of peer {name!r} is {template!r}", template, _COUNTS)
        return cls(name, template)

    def command(self, warmups: int, samples: int) -> list[str]:
        """Return the arguments of a process."""
        places = {"{python}": sys.executable, "{warmups}": str(warmups), "{samples}": str(samples)}
        if self.settings is not None:
            places[_SETTINGS] = ",".join(map(str, _batches(self.settings)))
        arguments = shlex.split(self.template)
        for place, value in places.items():
            arguments = [argument.replace(place, value) for argument in arguments]
        return arguments

    def check(self, reported: Any) -> tuple[int, ...] | None:
        """Look at what a process says that its arm is.

        Returns
        -------
        tuple of int or None
            The settings as they were used, clamped to the rings, it may be; None of a peer.

        Raises
        ------
        WorkloadError
            It is another arm's.
        """
        if self.settings is None:
            if reported != self.name:
                raise WorkloadError(f"says that its arm is {reported!r:.60}; it was asked for {self.name!r}")
            return None
        asked = _batches(self.settings)
        if (not isinstance(reported, list) or len(reported) != 3 or any(type(batch) is not int for batch in reported)
                or any(not 1 <= batch <= most for batch, most in zip(reported, asked, strict=True))):
            raise WorkloadError(f"says that its arm is {reported!r:.60}; it was asked for {list(asked)}, or what that "
                                "is clamped to")
        return tuple(reported)


def check_command(what: str, template: str, needed: tuple[str, ...]) -> None:
    """Raise `InputError`, beginning with `what`, if a template lacks a place or is no command line."""
    missing = [place for place in needed if place not in template]
    if missing:
        raise InputError(f"{what}: that lacks {', '.join(missing)}")
    try:
        shlex.split(template)
    except ValueError as problem:
        raise InputError(f"{what}, which is no command line: {problem}") from None


def _batches(settings: BatchSettings) -> tuple[int, int, int]:
    return settings.copy_batch, settings.stage_batch, settings.stage_copy_batch
