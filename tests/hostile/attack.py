"""The parts of an attack, and its execution."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.hostile.stage import Stage
from tests.hostile.window import PATIENCE, Ended, Window, run_through
from tests.support.command import Argument
from tests.support.users import as_user


def _nothing(_stage: Stage, _ended: Ended) -> list[str]:
    return []


class Attack(NamedTuple):
    """One attack.

    ``prepare`` sets up the stage as root. ``act`` is run as the attacker, an ordinary user, while the run waits in
    ``window``; its second argument is the name there. ``harm`` reports harm that the stage does not detect itself.
    ``in_c`` is the same moment with the C backend, if that makes other calls before.
    """

    name: str
    prepare: Callable[[Stage], object]
    window: Window | None = None
    act: Callable[[Stage, str], object] | None = None
    arguments: tuple[str, ...] = ("-n", "1")
    harm: Callable[[Stage, Ended], list[str]] = _nothing
    in_c: Window | None = None

    def carry_out(
        self, stage: Stage, package: Path | None = None, patience: float = PATIENCE
    ) -> tuple[Ended, list[str]]:
        """Run the attack; return how the run ended, and all harm that was done."""

        def act(name: str) -> None:
            if self.act is not None:
                mean = self.act
                as_user(lambda: mean(stage, name))

        self.prepare(stage)
        stage.begin()
        paths: tuple[Argument, ...] = (f"{stage.source}/", stage.target)
        ended = run_through(
            self.window, act, stage.scratch, *self.arguments, *paths, package=package, patience=patience
        )
        harm = stage.harm() + self.harm(stage, ended)
        if ended.status is None:
            harm.append("the run hung")
        return ended, harm


def replaced(path: Path, by: Path, lair: Path) -> None:
    """Let the attacker move an item away, and put another one in its place."""
    path.rename(lair / "put away")
    by.rename(path)
