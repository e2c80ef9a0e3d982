"""No test uses a time limit that a busy machine may exceed: see ``HANGS`` in tests/support/processes.py."""

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
"""Files that poll with short limits within a longer one."""


def test_time_limits_of_events_use_the_common_constant() -> None:
    short = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for path in sorted((REPOSITORY / "tests").rglob("*.py"))
        if str(path.relative_to(REPOSITORY)) not in POLLING
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for limit in LIMIT.findall(line)
        if float(limit) < HANGS
    ]
    assert short == []
