"""Words that people write out of habit, or by a slip: what is said of an option that there is not.

Rule: nothing is guessed, and nothing is done that was not asked for; the line says what was meant, perhaps.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection

from pcopy.errors import Refused
from pcopy.text import shown

NOT_YET = frozenset(
    (
        *("-0", "--backup", "--bwlimit", "--config", "--control", "--delete", "--drop-cache", "--dry-run", "--exclude"),
        *("--exclude-from", "--files-from", "--force", "--fsync", "--in-flight", "--include", "--log", "--max-delete"),
        *("--metrics", "--mirror", "--oplimit", "--reflink", "--report", "--stripe", "--stripe-affinity"),
    )
)
"""Options of pcopy that are planned and not built."""

NOT_YET_OF_PVERIFY = frozenset(("--exclude", "--exclude-from", "--include"))

_LEAST_LIKENESS = 0.7


def unknown_option(program: str, word: str, known: Collection[str], not_yet: Collection[str]) -> Refused:
    """What is told of ``word``, which is none of the options ``known`` that ``program`` has."""
    option = word.partition("=")[0]
    if option in not_yet:
        return Refused(f"{option}: not yet in this version of {program}; see {program} --help")
    name = shown(os.fsencode(option))
    near = difflib.get_close_matches(option, [*known, *not_yet], 1, _LEAST_LIKENESS) if option[:2] == "--" else []
    hint = f" the nearest is {near[0]}{' (not yet in this version)' if near[0] in not_yet else ''};" if near else ""
    return Refused(f"unknown option {name};{hint} see {program} --help (for a file of that name write ./{name})")
