"""Each rule is necessary: when it is disabled, in a copy of the package, an attack does harm.

The rules are disabled in Python code, including those of the backend.
"""

from __future__ import annotations

import ast
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.hostile.attack import Attack
from tests.hostile.attacks import ATTACKS
from tests.hostile.rules import RULES, Rule
from tests.hostile.stage import staged
from tests.hostile.window import PATIENCE
from tests.support import command
from tests.support.command import BEING_WRITTEN, REPOSITORY
from tests.support.edits import Edit, edit_file, edited
from tests.support.filesystems import Place
from tests.support.users import require_root

BY_NAME = {attack.name: attack for attack in ATTACKS}
CASES = [(rule, BY_NAME[name]) for rule in RULES for name in rule.attacks]

HANGS = 3.0
"""Seconds after which a run is considered to hang, where a hang is expected."""

NEVER_HARMFUL = {
    "a source directory is moved out",
    "a target directory is moved out",
    "a new symbolic link becomes one to a canary",
}
"""Attacks that no single rule prevents: pcopy works only through open descriptors."""


def without(edits: Sequence[Edit], package: Path) -> Path:
    """Create a copy of the package with these edits. Unchanged files keep their times and compiled
    code."""
    shutil.copytree(REPOSITORY / "pcopy", package / "pcopy", ignore=BEING_WRITTEN)
    for edit in edits:
        edit_file(package / "pcopy", edit)
    return package


def test_every_attack_has_a_rule() -> None:
    assert len(BY_NAME) == len(ATTACKS)
    assert {name for rule in RULES for name in rule.attacks} == BY_NAME.keys() - NEVER_HARMFUL


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "-"))
def test_every_edit_of_a_rule_changes_the_code(rule: Rule) -> None:
    for edit in rule.edits:
        source = (REPOSITORY / "pcopy" / edit.file).read_text()
        assert ast.dump(ast.parse(edited(source, edit))) != ast.dump(ast.parse(source))


@pytest.mark.in_turn(16)
@pytest.mark.parametrize(
    ("rule", "attack"), CASES, ids=[f"{rule.name}: {attack.name}".replace(" ", "-") for rule, attack in CASES]
)
def test_attack_does_harm_without_the_rule(
    rule: Rule, attack: Attack, on: Place, area: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_root("be attacked by an ordinary user")
    monkeypatch.setattr(command, "backend", "python")
    package = without(rule.edits, tmp_path / "package")
    with staged(on("ext4"), area) as stage:
        ended, harm = attack.carry_out(stage, package, HANGS if rule.hangs else PATIENCE)
    assert harm, ended
    assert (ended.status is None) == rule.hangs
