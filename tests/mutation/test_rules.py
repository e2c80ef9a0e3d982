"""Each rule of the engine is missed by a test once it is dropped: in a copy, one edit at a time."""

from __future__ import annotations

import ast
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mutation.rule import Rule
from tests.mutation.rules import RULES
from tests.mutation.warmed import Run, Warmed
from tests.support.edits import edited
from tests.support.extent import in_turn

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90
"""What one run of some quick tests may take on a busy machine; most take a second."""

CHOSEN = in_turn(RULES, 60, "mutation")
"""The rules that are dropped today."""

NO_MISTAKE = re.compile(r"^E +(NameError|UnboundLocalError|AttributeError|ImportError|SyntaxError)\b", re.MULTILINE)
"""What an edit that is broken itself would raise, and none that only drops a rule."""


class Copy:
    """A copy of what the quick tests need, in which one file at a time is edited."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "pcopy", directory / "pcopy", ignore=ignore)
        shutil.copytree(ROOT / "tests" / "engine", directory / "tests" / "engine", ignore=ignore)
        shutil.copytree(ROOT / "bench", directory / "bench", ignore=ignore)
        (directory / "tests" / "mutation").mkdir()
        shutil.copy(ROOT / "tests" / "mutation" / "test_directed.py", directory / "tests" / "mutation")
        shutil.copy(ROOT / "pyproject.toml", directory)
        self._warmed = Warmed(directory, ROOT, self._arguments("--collect-only", "tests"))
        assert self._warmed.first.status == pytest.ExitCode.OK, self._warmed.first.output

    def close(self) -> None:
        self._warmed.close()

    def run(self, tests: Iterable[str]) -> Run:
        """Runs tests, until one fails."""
        try:
            return self._warmed.run(self._arguments(*(f"tests/{test}" for test in tests)), SECONDS)
        finally:
            shutil.rmtree(self._directory / ".hypothesis", ignore_errors=True)  # examples of another edit

    def _arguments(self, *arguments: str) -> list[str]:
        options = ["-x", "-q", "-p", "no:cacheprovider", "--color=no"]
        return [*options, f"--rootdir={self._directory}", f"--basetemp={self._directory / 'made'}", *arguments]

    @contextmanager
    def edited(self, rule: Rule) -> Iterator[None]:
        path = self._directory / "pcopy" / "engine" / rule.file
        source = path.read_text()
        times = path.stat()
        path.write_text(edited(source, rule.edit))
        os.utime(path, (1, 1))  # what was compiled must never fit
        try:
            yield
        finally:
            path.write_text(source)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def failed(run: Run) -> list[str]:
    """The tests that failed, as node ids below ``tests/``."""
    return re.findall(r"^FAILED tests/(.*?)(?: - .*)?$", run.output, re.MULTILINE)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copy]:
    made = Copy(tmp_path_factory.mktemp("mutation") / "copy")
    yield made
    made.close()


def test_rule_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "-"))
def test_every_rule_matches_the_code(rule: Rule) -> None:
    """``edited`` raises ``Stale`` for a rule whose function or operation does not exist."""
    source = (ROOT / "pcopy" / rule.edit.file).read_text()
    assert ast.dump(ast.parse(edited(source, rule.edit))) != ast.dump(ast.parse(source))


def test_all_tests_pass_without_an_edit(copy: Copy) -> None:
    run = copy.run(sorted({test for rule in CHOSEN for test in rule.tests}))
    assert run.status == pytest.ExitCode.OK, run.output


@pytest.mark.parametrize("rule", CHOSEN, ids=lambda rule: rule.name.replace(" ", "-"))
def test_dropping_a_rule_fails_a_test(rule: Rule, copy: Copy) -> None:
    with copy.edited(rule):
        run = copy.run(rule.tests)
    assert run.status == pytest.ExitCode.TESTS_FAILED, run.output
    assert len(failed(run)) == 1, run.output
    assert failed(run)[0].startswith(rule.tests), run.output
    assert not NO_MISTAKE.search(run.output), run.output
