"""``pcopy --jobs`` and ``pcopy --discard``: what is done with stored jobs by one process, without copying."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pcopy.cli.jobs import discard, listing, to_standard_error
from pcopy.cli.launcher import speaks
from pcopy.cli.leftovers import remove_temporaries
from pcopy.cli.options import parse


def answer(words: Sequence[str]) -> str | None:
    """What ``words`` ask of stored jobs, done; None if they ask for a copy. Raises ``Refused``."""
    arguments = parse(words)
    if not (arguments.asked.jobs or arguments.asked.discard is not None):
        return None
    if not speaks(os.environ):
        return ""
    if arguments.asked.jobs:
        return "\n".join(listing(arguments.json))
    assert arguments.asked.discard is not None
    discard(arguments.asked.discard, remove_temporaries, to_standard_error)
    return "discarded"
