"""``pcopy.restripe`` reports layouts and changes them, as ``pstripe`` does."""

from __future__ import annotations

import json

import pytest

import pcopy
from tests.lustre.conftest import Lustre
from tests.lustre.standin import plain
from tests.lustre.test_copies import MIB, make
from tests.support.command import pcopy as run_pcopy
from tests.support.command import show


def test_layouts_are_reported_and_changed(lustre: Lustre) -> None:
    environment = lustre.environment()
    make(lustre, lustre.first / "file", plain(1, MIB), 5 * MIB)
    run = run_pcopy("--json", lustre.first, program="pstripe", env=environment)
    assert run.returncode == 0, show(run)
    printed = json.loads(run.stdout)
    # Only the programs get the environment: the helper process of other tests, which may begin here, must not.
    with pytest.MonkeyPatch.context() as patched:
        for name, value in environment.items():
            patched.setenv(name, value)
        result = pcopy.restripe(lustre.first)
        changed = pcopy.restripe([lustre.first / "file"], stripe="4:1M")
    assert dict(result.other) == {}
    assert {key: getattr(result, key) for key in printed if key != "seconds"} == {
        key: value for key, value in printed.items() if key != "seconds"
    }
    assert changed.restriped == 1
    shown = lustre.shown(lustre.first / "file")
    assert shown is not None
    assert [(part.count, part.size) for part in shown.components] == [(4, MIB)]
