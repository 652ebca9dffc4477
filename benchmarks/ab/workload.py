"""The workload: a command line with places for an arm's settings and the protocol's numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from benchmarks.ab.arms import Arm, check_command
from strata.settings import BatchSettings

__all__ = ["BUILT_IN", "Workload"]

_REST = "--settings {settings} --warmups {warmups} --samples {samples}"

#: Workloads that have a name.
BUILT_IN = {
    "prefill-engine": "{python} -m examples.prefill_engine arm " + _REST,
    "replay": "{python} -m benchmarks.ab.replay_arm " + _REST,
}
_NEEDED = ("{settings}", "{warmups}", "{samples}")


@dataclass(frozen=True)
class Workload:
    """A command that runs one arm in one process and prints one JSON object.

    Attributes
    ----------
    template : str
        As `Arm` has it.
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
        what = f"workload is {text!r} ({' or '.join(map(repr, BUILT_IN))} is allowed, or a command line)"
        check_command(what, template, _NEEDED)
        return cls(template)

    def arms(self, settings: Iterable[BatchSettings]) -> list[Arm]:
        """Return an arm for each of some settings."""
        return [Arm.at(one, self.template) for one in settings]
