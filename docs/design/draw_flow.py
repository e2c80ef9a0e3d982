"""Generate the diagram of tasks, messages and data: ``python docs/design/draw_flow.py > docs/design/flow.svg``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.drawn import DARK_STYLE

WIDTH, HEIGHT = 860, 430


class Box(NamedTuple):
    """A box with ``lines`` of text, the first of which is its name. Positions and sizes are in user units."""

    x: int
    y: int
    width: int
    height: int
    lines: tuple[str, ...]
    colour: str = "#ffffff"


_ENGINE, _TASKS, _FSIO, _DISK, _OTHER = "#dceaf7", "#e2f3e6", "#fdf0d5", "#eeeeee", "#f7e3ee"

BOXES = {
    "queue": Box(40, 70, 150, 60, ("queue", "engine/queue.py"), _ENGINE),
    "backlog": Box(40, 190, 150, 60, ("backlog, spool", "engine/backlog.py"), _ENGINE),
    "driver": Box(250, 70, 150, 60, ("driver and node", "engine/driver.py, node.py"), _ENGINE),
    "task": Box(460, 70, 150, 60, ("task and result", "tasks/, tasks/base/result.py"), _TASKS),
    "backend": Box(460, 190, 150, 60, ("backend, new file", "fsio/backend/, new_file.py"), _FSIO),
    "journal": Box(250, 190, 150, 60, ("journal", "checkpoint/journal.py"), _ENGINE),
    "others": Box(690, 70, 150, 60, ("other ranks", "engine/transports/"), _OTHER),
    "source": Box(460, 340, 150, 50, ("source",), _DISK),
    "target": Box(690, 340, 150, 50, ("destination",), _DISK),
    "directory": Box(250, 340, 150, 50, ("job directory",), _DISK),
    "sink": Box(40, 340, 150, 50, ("screen (rank 0)", "report/"), _OTHER),
}
"""The boxes of the diagram."""

ARROWS = (
    ((190, 90), (250, 90), "next task", (220, 82)),
    ((250, 112), (190, 112), "spawned", (220, 126)),
    ((115, 130), (115, 190), "too many, later phases", (120, 164)),
    ((400, 90), (460, 90), "runs", (430, 82)),
    ((460, 112), (400, 112), "outcome", (430, 126)),
    ((535, 130), (535, 190), "batches, tickets", (540, 164)),
    ((325, 130), (325, 190), "facts", (330, 164)),
    ((325, 250), (325, 340), "records, by epoch", (330, 300)),
    ((535, 340), (535, 250), "open, read", (540, 300)),
    ((610, 240), (760, 340), "write, metadata, rename", (700, 280)),
    ((250, 130), (150, 340), "counters, failures", (70, 300)),
)
"""The arrows: start, end, label, and the position of the label."""


def _box(box: Box) -> str:
    """Return the elements of a box."""
    parts = [
        f"<rect x='{box.x}' y='{box.y}' width='{box.width}' height='{box.height}' rx='6'"
        f" fill='{box.colour}' stroke='#333'/>"
    ]
    middle = box.x + box.width // 2
    top = box.y + box.height // 2 - 8 * (len(box.lines) - 1) + 5
    for index, line in enumerate(box.lines):
        style = "font-weight='bold'" if not index else "font-size='10'"
        parts.append(f"<text x='{middle}' y='{top + 17 * index}' text-anchor='middle' {style}>{escape(line)}</text>")
    return "\n".join(parts)


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Return the element of an arrow."""
    (x, y), (to_x, to_y) = start, end
    return f"<line x1='{x}' y1='{y}' x2='{to_x}' y2='{to_y}' stroke='#333' marker-end='url(#head)'/>"


def _label(at: tuple[int, int], text: str, anchor: str = "start") -> str:
    """Return the element of a label."""
    return f"<text x='{at[0]}' y='{at[1]}' font-size='10' text-anchor='{anchor}' fill='#333'>{escape(text)}</text>"


def picture() -> str:
    """Return the text of the SVG."""
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}'"
        " font-family='sans-serif' font-size='13'>",
        "<defs><marker id='head' viewBox='0 0 8 8' refX='8' refY='4' markerWidth='8' markerHeight='8'"
        " orient='auto-start-reverse'><path d='M0,0 L8,4 L0,8 z' fill='#333'/></marker></defs>",
        DARK_STYLE,
        "<rect x='20' y='30' width='610' height='240' rx='8' fill='none' stroke='#888' stroke-dasharray='5 4'/>",
        _label((30, 48), "one rank"),
    ]
    parts += map(_box, BOXES.values())
    for start, end, text, at in ARROWS:
        parts.append(_arrow(start, end))
        parts.append(_label(at, text, "middle" if start[1] == end[1] else "start"))
    parts += [
        "<path d='M325,70 C325,20 765,20 765,70' fill='none' stroke='#333'"
        " marker-start='url(#head)' marker-end='url(#head)'/>",
        _label((545, 24), "tasks, requests, signals, counters, epochs (engine/messages.py)", "middle"),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.stdout.write(picture())
