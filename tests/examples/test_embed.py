"""The example without torch looks at every expert's bytes itself."""

from __future__ import annotations

from pathlib import Path

from tests.support.scripts import ended_well, run_script

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "embed.py"


def test_embed() -> None:
    """All experts, half of them staged."""
    lines = ended_well(run_script(EXAMPLE.read_text(), prologue="", STRATA_HIP_RUNTIME="software"))
    assert [line.split()[1:] for line in lines if line.startswith("copies")] == [["64", "64"]]
