"""How many of the tests are run: by default enough for every change, or all of them."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from typing import TypeVar

Choice = TypeVar("Choice")


def everything() -> bool:
    """Return True if ``PCOPY_TESTS=all`` requests all seeds, errors and variants, and real starts of the program."""
    asked = os.environ.get("PCOPY_TESTS", "")
    if asked not in ("", "all"):
        raise ValueError(f"PCOPY_TESTS is {asked!r}: it may be 'all', or is not set")
    return asked == "all"


SEED = "PCOPY_TESTS_SEED"
"""The environment variable with the number that selects tests if not all are run; the default is the day."""


def seed() -> int:
    """Return the number. It is the same for all workers, which inherit it from the process that starts them."""
    return int(os.environ.setdefault(SEED, str(int(time.time() // 86_400))))


def in_turn(choices: Sequence[Choice], most: int, whose: object) -> list[Choice]:
    """Return ``most`` of the choices for ``whose`` (a text), in their order. The next seed selects the following ones.

    Thus all choices are run within a few days, combined with different ones each time.
    """
    if everything():
        return list(choices)
    first = (seed() * most + zlib.crc32(str(whose).encode())) % len(choices)
    chosen = {(first + number) % len(choices) for number in range(most)}
    return [choice for number, choice in enumerate(choices) if number in chosen]
