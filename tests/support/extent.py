"""How much of the tests is run: enough for every change by default, or everything there is."""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from typing import TypeVar

Choice = TypeVar("Choice")


def everything() -> bool:
    """Does ``PCOPY_TESTS=all`` ask for all seeds, errors and variants, and for real starts of the program?"""
    asked = os.environ.get("PCOPY_TESTS", "")
    if asked not in ("", "all"):
        raise ValueError(f"PCOPY_TESTS is {asked!r}: it may be 'all', or is not set")
    return asked == "all"


SEED = "PCOPY_TESTS_SEED"
"""The variable with a number that decides what is chosen where not everything is run: the day, unless it is given."""


def seed() -> int:
    """It is the same for all workers of a session, whose environment has it from the process that starts them."""
    return int(os.environ.setdefault(SEED, str(int(time.time() // 86_400))))


def in_turn(choices: Sequence[Choice], most: int, whose: object) -> list[Choice]:
    """``most`` of the choices for ``whose`` (as text), in their order: with each next seed the ones that follow.

    So all have had their turn after a few days, and with other things on other days.
    """
    if everything():
        return list(choices)
    first = (seed() * most + zlib.crc32(str(whose).encode())) % len(choices)
    chosen = {(first + number) % len(choices) for number in range(most)}
    return [choice for number, choice in enumerate(choices) if number in chosen]
