"""The workload: a command line with places for an arm's settings and the protocol's numbers."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass

from strata.bench.errors import InputError
from strata.settings import BatchSettings

__all__ = ["BUILT_IN", "Workload"]

_REST = "--settings {settings} --warmups {warmups} --samples {samples}"

#: Workloads that have a name.
BUILT_IN = {
    "prefill-engine": "{python} -m examples.prefill_engine arm " + _REST,
    "replay": "{python} -m strata.bench.replay_arm " + _REST,
}
_NEEDED = ("{settings}", "{warmups}", "{samples}")


@dataclass(frozen=True)
class Workload:
    """A command that runs one arm in one process and prints one JSON object.

    Attributes
    ----------
    template : str
        A command line, split as a shell would. ``{settings}`` stands for ``C,S,SC``, ``{warmups}`` and
        ``{samples}`` for counts, ``{python}`` for this interpreter; other braces are left alone.
    """

    template: str

    @classmethod
    def named(cls, text: str) -> Workload:
        """Make one of a built-in name, or of a template.

        Raises
        ------
        InputError
            A needed place is missing: all arms would be the same, or ignore the protocol.
        """
        template = BUILT_IN.get(text.strip(), text)
        missing = [place for place in _NEEDED if place not in template]
        if missing:
            raise InputError(f"workload is {text!r}: {' or '.join(map(repr, BUILT_IN))} is allowed, or a command line; "
                             f"that lacks {', '.join(missing)}")
        try:
            shlex.split(template)
        except ValueError as problem:
            raise InputError(f"workload is {text!r}, which is no command line: {problem}") from None
        return cls(template)

    def command(self, settings: BatchSettings, warmups: int, samples: int) -> list[str]:
        """Return the arguments of an arm's process."""
        places = {
            "{python}": sys.executable,
            "{settings}": f"{settings.copy_batch},{settings.stage_batch},{settings.stage_copy_batch}",
            "{warmups}": str(warmups),
            "{samples}": str(samples),
        }
        arguments = shlex.split(self.template)
        for place, value in places.items():
            arguments = [argument.replace(place, value) for argument in arguments]
        return arguments
