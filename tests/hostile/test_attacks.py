"""An ordinary user attacks while root copies: nothing outside of the trees is read, written, or becomes the
attacker's."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
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
