"""An ordinary user attacks while root copies: nothing outside of the trees is read, written, or becomes the
attacker's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.c_attacks import C_ATTACKS
from tests.hostile.stage import staged
from tests.support import command, native
from tests.support.filesystems import Place
from tests.support.users import require_root


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
def test_attacker_does_no_harm(
    attack: Attack, backend: str, on: Place, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root("be attacked by an ordinary user")
    if backend == "c":
        native.require()
        attack = attack._replace(window=attack.in_c or attack.window)
    monkeypatch.setattr(command, "backend", backend)
    with staged(on("ext4"), area) as stage:
        ended, harm = attack.carry_out(stage)
    assert harm == [], ended.errors
    assert ended.status in (0, 1), ended


NOT_IN_PYTHON = {
    "a file becomes a hard link in pchmod": "it is not examined before it is opened, and part of the tree by then",
    "a new directory becomes another one with its inode's number": "it stays open until it is finished",
}
"""Attacks for which the Python backend has no such moment, and why."""


@pytest.mark.in_turn(16)
@pytest.mark.parametrize(
    "attack",
    [attack for attack in C_ATTACKS if attack.name not in NOT_IN_PYTHON],
    ids=lambda attack: attack.name.replace(" ", "-"),
)
def test_attack_on_c_does_no_harm_in_python(
    attack: Attack, on: Place, area: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the C backend, tests/hostile/test_c_guards.py carries out these attacks."""
    require_root("be attacked by an ordinary user")
    monkeypatch.setattr(command, "backend", "python")
    with staged(on("ext4"), area) as stage:
        ended, harm = attack.carry_out(stage)
    assert harm == [], ended.errors
