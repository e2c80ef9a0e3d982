"""The parts of an attack, and its execution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tests.hostile.stage import Stage
from tests.hostile.window import PATIENCE, Ended, Window, run_through
from tests.support.command import Argument
from tests.support.users import as_user


def _source_and_target(stage: Stage) -> tuple[Argument, ...]:
    return f"{stage.source}/", stage.target


def _nothing(_stage: Stage, _ended: Ended) -> list[str]:
    return []


class Attack(NamedTuple):
    """One attack.

    ``prepare`` sets up the stage as root. ``act`` is run as the attacker, an ordinary user, while the run waits in
    ``window``; its second argument is the name there. ``harm`` reports harm that the stage does not detect itself.
    ``in_c`` is the same moment with the C backend, if that makes other calls before. ``program`` is run with
    ``arguments`` and ``paths``. ``by_root``: it is an administrator who acts. ``user``
    runs the program (None: root); it is started by ``wrap``.
    """

    name: str
    prepare: Callable[[Stage], object]
    window: Window | None = None
    act: Callable[[Stage, str], object] | None = None
    arguments: tuple[str, ...] = ("-n", "1")
    harm: Callable[[Stage, Ended], list[str]] = _nothing
    in_c: Window | None = None
    program: str = "pcopy"
    paths: Callable[[Stage], tuple[Argument, ...]] = _source_and_target
    by_root: bool = False
    wrap: tuple[str, ...] = ()
    user: int | None = None

    def carry_out(
        self,
        stage: Stage,
        package: Path | None = None,
        patience: float = PATIENCE,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[Ended, list[str]]:
        """Run the attack; return how the run ended, and all harm that was done."""

        def act(name: str) -> None:
            if self.act is not None:
                mean = self.act
                if self.by_root:
                    mean(stage, name)
                else:
                    as_user(lambda: mean(stage, name))

        self.prepare(stage)
        stage.begin()
        words = *self.arguments, *self.paths(stage)
        options: dict[str, Any] = {
            "package": package,
            "patience": patience,
            "program": self.program,
            "wrap": self.wrap,
            "user": self.user,
        }
        ended = run_through(self.window, act, stage.scratch, *words, env=env, **options)
        harm = stage.harm() + self.harm(stage, ended)
        if ended.status is None:
            harm.append("the run hung")
        return ended, harm


def replaced(path: Path, by: Path, lair: Path) -> None:
    """Let the attacker move an item away, and put another one in its place."""
    path.rename(lair / "put away")
    by.rename(path)
