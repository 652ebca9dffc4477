"""Draws the figures of README and docs: ``python -m docs.figures`` writes the SVG files beside this script."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
INK, SOFT, BLUE, GREEN, AMBER = "#1f2933", "#7b8794", "#2f6fb3", "#2e8b57", "#c77d0a"


class Drawing:
    """A picture that is put together from boxes, arrows and words."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def box(self, x: float, y: float, w: float, h: float, text: str = "", colour: str = INK,
            fill: str = "white") -> None:
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="4" fill="{fill}" stroke="{colour}"/>')
        if text:
            self.words(x + w / 2, y + h / 2 + 4, text, colour, "middle")

    def words(self, x: float, y: float, text: str, colour: str = INK, anchor: str = "start", size: int = 12) -> None:
        self.parts.append(
            f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{escape(text)}</text>')

    def arrow(self, *points: tuple[float, float], colour: str = INK, dashed: bool = False) -> None:
        path = "M" + " L".join(f"{x} {y}" for x, y in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        self.parts.append(f'<path d="{path}" fill="none" stroke="{colour}"{dash} marker-end="url(#tip)"/>')

    def write(self, name: str) -> None:
        text = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'font-family="Helvetica, Arial, sans-serif">\n<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" '
            f'markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0 L8 4 L0 8 z" fill="{SOFT}"/>'
            f'</marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" fill="white"/>\n'
            + "\n".join(self.parts) + "\n</svg>\n")
        (HERE / name).write_text(text, encoding="utf-8")


def ring() -> None:
    """How experts flow: list, groups, copy stream, slots, engine, window."""
    d = Drawing(860, 330)
    d.words(20, 28, "host RAM", SOFT)
    d.words(20, 50, "list of experts, in the order in which the engine takes them")
    groups = (("direct", BLUE, 4), ("direct", BLUE, 4), ("staged", AMBER, 3))
    x = 20
    for kind, colour, count in groups:
        for k in range(count):
            d.box(x + k * 34, 62, 30, 30, fill="#eef4fb" if kind == "direct" else "#fdf3e1", colour=colour)
        d.parts.append(f'<path d="M{x} 100 h{count * 34 - 4}" stroke="{colour}" stroke-width="2"/>')
        d.words(x + (count * 34 - 4) / 2, 116, f"{kind} group", colour, "middle")
        x += count * 34 + 12
    d.box(470, 60, 150, 36, "host ring (pinned)", AMBER)
    d.arrow((x - 10, 78), (468, 78), colour=AMBER)
    d.words(545, 112, "workers copy or read", AMBER, "middle")
    d.arrow((150, 126), (150, 176), colour=BLUE)
    d.arrow((545, 120), (545, 150), (300, 150), (300, 176), colour=AMBER)
    d.words(20, 170, "GPU", SOFT)
    d.words(312, 170, "one copy an expert; one wait and one record a group", INK)
    d.parts.append(f'<path d="M20 186 H700" stroke="{SOFT}"/>')
    d.words(712, 190, "copy stream", SOFT)
    for k in range(8):
        d.box(40 + k * 80, 204, 72, 34, f"slot {k}", GREEN if k < 3 else BLUE)
    d.words(712, 226, "GPU ring", SOFT)
    d.parts.append(f'<path d="M20 262 H700" stroke="{SOFT}"/>')
    d.words(712, 266, "compute stream", SOFT)
    d.arrow((156, 240), (156, 260), colour=GREEN)
    d.words(166, 254, "the engine's kernels read a span of slots", GREEN)
    d.arrow((60, 264), (60, 300), (690, 300), (690, 188), colour=GREEN, dashed=True)
    d.words(360, 318, "release moves the window: these slots may be written again", GREEN, "middle")
    d.write("ring.svg")


def timeline() -> None:
    """The contract of one group on the two streams."""
    d = Drawing(860, 220)
    for y, name in ((50, "issuer, copy stream"), (120, "engine, compute stream")):
        d.words(16, y + 4, name, SOFT)
        d.parts.append(f'<path d="M170 {y} H850" stroke="{SOFT}"/>')
    steps = ((180, 92, "reuse wait", BLUE), (276, 58, "copy", BLUE), (338, 58, "copy", BLUE), (400, 58, "copy", BLUE),
             (462, 110, "record copied", BLUE))
    for x, w, text, colour in steps:
        d.box(x, 34, w, 30, text, colour)
    d.box(582, 104, 92, 30, "wait copied", GREEN)
    d.box(678, 104, 70, 30, "kernels", GREEN)
    d.box(752, 104, 94, 30, "record used", GREEN)
    d.arrow((572, 64), (600, 102), colour=SOFT)
    d.words(600, 84, "issued = e (published)", SOFT)
    d.box(180, 104, 110, 30, "record used", GREEN)
    d.arrow((226, 104), (226, 66), colour=SOFT)
    d.words(236, 90, "consumed: the window opens", SOFT)
    d.arrow((800, 134), (800, 180), (500, 180), colour=SOFT, dashed=True)
    d.words(490, 184, "the next group of these slots waits for this record", SOFT, "end")
    d.write("timeline.svg")


if __name__ == "__main__":
    ring()
    timeline()
