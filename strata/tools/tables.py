"""The layout of tables, as text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

__all__ = ["Table", "signed"]


@dataclass(frozen=True)
class Table:
    """A head and rows of cells.

    Attributes
    ----------
    head : sequence of str
    rows : iterable of sequence
        Integers are written with thousands separators, everything else by `str`.
    left : int
        Columns that are aligned to the left; the others hold numbers.
    """

    head: Sequence[str]
    rows: Iterable[Sequence[object]]
    left: int = 1

    def text(self) -> list[str]:
        """Return its lines, columns two spaces apart."""
        rows = [list(self.head), *self._cells()]
        widths = [max(len(row[column]) for row in rows) for column in range(len(self.head))]
        return [
            "  ".join(cell.ljust(width) if column < self.left else cell.rjust(width)
                      for column, (cell, width) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in rows
        ]

    def markdown(self) -> list[str]:
        """Return its lines."""
        rule = ["---" if column < self.left else "---:" for column in range(len(self.head))]
        rows = [self.head, rule, *self._cells()]
        return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]

    def _cells(self) -> list[list[str]]:
        return [[f"{cell:,}" if isinstance(cell, int) and not isinstance(cell, bool) else str(cell) for cell in row]
                for row in self.rows]


def signed(percent: float | None) -> str:
    """Write a change in percent with its sign; ``-`` where there is none."""
    return "-" if percent is None else f"{percent:+.1f} %"
