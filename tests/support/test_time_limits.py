"""No test ends for a limit of time that a busy machine exceeds: see ``HANGS`` in tests/support/processes.py."""

from __future__ import annotations

import re

from tests.support.command import REPOSITORY
from tests.support.processes import HANGS

LIMIT = re.compile(
    r"(?:communicate\(timeout=|process\.wait\(|run\.wait\(|(?<!not )wait_until\(.*, (?:seconds=)?"
    r"|(?:run|popen|pcopy)\(.*\btimeout=)(\d+(?:\.\d+)?)\)",
    re.IGNORECASE,
)
POLLING = ("tests/support/held.py", "tests/hostile/window.py")
"""Files that ask again and again, with a limit of their own around it."""


def test_the_limit_of_an_event_is_that_of_what_hangs() -> None:
    short = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        if str(path.relative_to(REPOSITORY)) not in POLLING
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for limit in LIMIT.findall(line)
        if float(limit) < HANGS
    ]
    assert short == []
