"""The functions ``pcopy.archive``, ``pcopy.jobs`` and ``pcopy.walk`` and the subpackages of the same names."""

from __future__ import annotations

import subprocess
import sys
from unittest import mock

import pytest

import pcopy
from tests.support.command import REPOSITORY


@pytest.mark.parametrize(("name", "module"), [("archive", "member"), ("jobs", "lock"), ("walk", "preliminary_walk")])
def test_subpackage_can_be_imported_beside_the_function(name: str, module: str) -> None:
    code = (
        f"import pcopy, pcopy.{name}.{module} as loaded\n"
        f"import sys; assert loaded is sys.modules['pcopy.{name}.{module}']\n"
        f"from pcopy.{name} import {module}\n"
        f"assert callable(pcopy.{name})\n"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


@pytest.mark.parametrize("name", vars(pcopy)["__all__"])
def test_function_can_be_replaced_for_a_test(name: str) -> None:
    function = getattr(pcopy, name)
    with mock.patch(f"pcopy.{name}") as substitute:
        assert getattr(pcopy, name) is substitute
    assert getattr(pcopy, name) is function
