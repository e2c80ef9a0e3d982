"""Generate the engine's state diagrams: ``python docs/design/draw_states.py > docs/design/states.md``."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pcopy.engine import safra, states, termination

_INTRODUCTION = """\
# The engine's states

Generated from the tables in the code by `docs/design/draw_states.py`; a test checks that this page is up to date. Any
transition without an arrow here raises `InvariantBroken` and ends the job.
"""

_MACHINES: list[tuple[str, str, Any]] = [
    ("A rank in the life of a job", "pcopy/engine/states.py", states.RANK_STATE_TRANSITIONS),
    ("A rank in Dijkstra and Scholten's tree", "pcopy/engine/termination.py", termination.ENGAGEMENT_TRANSITIONS),
    ("Safra's token, seen from a rank", "pcopy/engine/safra.py", safra.TOKEN_STATE_TRANSITIONS),
]


def diagram(table: dict[Enum, frozenset[Enum]]) -> str:
    """Return the table as a Mermaid state diagram. The first state is the initial one."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {next(iter(table)).value}"]
    for state, followers in table.items():
        lines += sorted(f"    {state.value} --> {follower.value}" for follower in followers)
        if not followers:
            lines.append(f"    {state.value} --> [*]")
    return "\n".join([*lines, "```"])


def page() -> str:
    """Return the text of the page."""
    parts = [_INTRODUCTION]
    parts += [f"## {title}\n\n`{path}`\n\n{diagram(table)}\n" for title, path, table in _MACHINES]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(page())
