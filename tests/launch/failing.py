"""pcopy with a bug: ``python -m tests.launch.failing RANK …`` raises on rank RANK, in the midst of its work."""

from __future__ import annotations

import sys

from pcopy.cli.main import main
from pcopy.engine.driver import Driver

BUG = "broken on purpose"


def break_rank(number: int) -> None:
    steps = 0
    original = Driver._step

    def step(self: Driver) -> None:
        nonlocal steps
        steps += 1
        if self._node.rank == number and steps > 5:
            raise RuntimeError(BUG)
        original(self)

    Driver._step = step  # type: ignore[method-assign]


if __name__ == "__main__":
    break_rank(int(sys.argv.pop(1)))
    sys.exit(main())
