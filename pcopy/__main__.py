"""``python -m pcopy`` is ``pcopy``."""

from pcopy.cli.script import pcopy

pcopy()
