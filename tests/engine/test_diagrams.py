"""The state diagrams in the documentation are those of the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DESIGN = Path(__file__).resolve().parents[2] / "docs" / "design"


def test_diagrams_are_current() -> None:
    drawn = subprocess.run([sys.executable, DESIGN / "draw_states.py"], stdout=subprocess.PIPE, check=True).stdout
    assert (DESIGN / "states.md").read_bytes() == drawn
