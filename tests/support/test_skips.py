"""No test is skipped for a reason that is not listed, and none in CI for the lack of something that CI provides."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY
from tests.support.skips import KINDS, NEVER_IN_CI, NOT_PACKAGED, kind_of

SCRIPT = (REPOSITORY / "bin/install-debian-packages").read_text()

TESTS = {
    "call": 'def test():\n    pytest.skip("{}")\n',
    "mark": '@pytest.mark.skip(reason="{}")\ndef test(): pass\n',
    "condition": '@pytest.mark.skipif(True, reason="{}")\ndef test(): pass\n',
    "fixture": '@pytest.fixture\ndef f():\n    pytest.skip("{}")\ndef test(f): pass\n',
    "module": 'pytest.skip("{}", allow_module_level=True)\n',
}
WHYS = {
    "root": "only root can mount",
    "program": "there is no strace here",
    "kernel": "no ACLs here",
    "new": "I am tired",
}


@pytest.mark.parametrize("ci", ["true", ""])
def test_unlisted_or_impossible_skip_reason_fails_the_test(tmp_path: Path, ci: str) -> None:
    cases = {f"{how}_{why}": body.format(WHYS[why]) for how, body in TESTS.items() for why in WHYS}
    for case, body in cases.items():
        (tmp_path / f"test_{case}.py").write_text(f"import pytest\n{body}")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.skips", "-p", "no:cacheprovider", "-qrsfE"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "CI": ci}
    done = subprocess.run(
        [*command, "--continue-on-collection-errors", "--rootdir", tmp_path, tmp_path],
        check=False, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout
    failed = set(re.findall(r"^(?:FAILED|ERROR) \S*test_([a-z]+_[a-z]+)\.py", done.stdout, re.MULTILINE))
    everything_is_here = ci == "true" and os.geteuid() == 0
    bad = ("new", "root", "program") if everything_is_here else ("new",)
    assert failed == {case for case in cases if case.endswith(bad)}, done.stdout
    assert "not in the lists of tests/support/skips.py: I am tired" in done.stdout
    assert ("skipped in CI, which has what is needed" in done.stdout) == everything_is_here


def reasons() -> Iterator[tuple[str, str]]:
    """Yield each reason in the tests with its position. Variable parts of a reason are replaced by `1`."""
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        text = path.read_text()
        if path == Path(__file__) or "skip" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and (given := _argument(node)) is not None:
                yield f"{path.relative_to(REPOSITORY)}:{node.lineno}", given


def _argument(call: ast.Call) -> str | None:
    name = _name(call.func)
    named = [keyword.value for keyword in call.keywords if keyword.arg == "reason"]
    if name in ("pytest.skip", "skip"):
        (value,) = (call.args or named)[:1]
    elif name in ("pytest.mark.skip", "pytest.mark.skipif"):
        (value,) = named
    elif name in ("pytest.importorskip", "importorskip"):
        return f"could not import '{_text(call.args[0])}': No module named x"
    else:
        return None
    return _text(value)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return f"{_name(function.value)}.{function.attr}"
    return function.id if isinstance(function, ast.Name) else ""


def _text(value: ast.expr) -> str | None:
    if isinstance(value, ast.Constant):
        return str(value.value)
    if isinstance(value, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "1" for part in value.values)
    return None  # computed elsewhere: the hook judges it


def test_all_skip_reasons_in_the_tests_are_listed() -> None:
    found = list(reasons())
    assert len(found) > 80
    assert [(where, reason) for where, reason in found if kind_of(reason) is None] == []


def test_every_list_of_skip_reasons_is_used() -> None:
    assert set(NEVER_IN_CI) < set(KINDS)
    assert [name for name in NOT_PACKAGED if f" {name}" in SCRIPT] == []
