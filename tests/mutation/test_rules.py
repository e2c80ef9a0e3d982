"""Each rule of the engine is missed by a test once it is dropped: in a copy, one edit at a time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mutation.rule import Rule
from tests.mutation.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90
"""What one run of some quick tests may take on a busy machine; most take a second."""

NO_MISTAKE = re.compile(r"^E +(NameError|UnboundLocalError|AttributeError|ImportError|SyntaxError)\b", re.MULTILINE)
"""What an edit that is broken itself would raise, and none that only drops a rule."""


class Run(NamedTuple):
    """How pytest ended in a copy."""

    status: int
    output: str

    @property
    def failed(self) -> list[str]:
        """The tests that failed, as node ids below ``tests/``."""
        return re.findall(r"^FAILED tests/(.*?)(?: - .*)?$", self.output, re.MULTILINE)


def copy_sources(directory: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pcopy", directory / "pcopy", ignore=ignore)
    shutil.copytree(ROOT / "tests" / "engine", directory / "tests" / "engine", ignore=ignore)
    (directory / "tests" / "mutation").mkdir()
    shutil.copy(ROOT / "tests" / "mutation" / "test_directed.py", directory / "tests" / "mutation")
    shutil.copy(ROOT / "pyproject.toml", directory)
    # Files keep their times when they are copied: what this compiles serves all copies.
    assert run_pytest(directory, "--collect-only", "tests").status == pytest.ExitCode.OK


def edit(directory: Path, rule: Rule) -> None:
    path = directory / "pcopy" / "engine" / rule.file
    source = path.read_text()
    assert source.count(rule.old) == 1, f"the table is stale: {rule.file} has {source.count(rule.old)} times {rule.old}"
    assert rule.old != rule.new
    path.write_text(source.replace(rule.old, rule.new))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):  # it may fit by its time and size
        compiled.unlink()


def run_pytest(directory: Path, *arguments: str) -> Run:
    """Raises ``subprocess.TimeoutExpired`` if the tests hang. Plugins would take longer to load than most tests run."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--color=no"]
    command += [f"--rootdir={directory}", f"--basetemp={directory / 'made'}"]
    done = subprocess.run(
        [*command, *arguments],
        check=False,
        cwd=directory,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(directory), "COLUMNS": "400"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return Run(done.returncode, done.stdout)


def run_tests(directory: Path, tests: Iterable[str]) -> Run:
    return run_pytest(directory, *(f"tests/{test}" for test in tests))


def mutate(pristine: Path, directory: Path, rule: Rule) -> Run:
    shutil.copytree(pristine, directory)
    try:
        edit(directory, rule)
        return run_tests(directory, rule.tests)
    finally:
        shutil.rmtree(directory)


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy without an edit."""
    directory = tmp_path_factory.mktemp("mutation") / "pristine"
    copy_sources(directory)
    return directory


def test_names_are_unique() -> None:
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_without_an_edit_all_pass(pristine: Path) -> None:
    run = run_tests(pristine, sorted({test for rule in RULES for test in rule.tests}))
    assert run.status == pytest.ExitCode.OK, run.output


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name.replace(" ", "-"))
def test_a_dropped_rule_is_missed(rule: Rule, pristine: Path) -> None:
    run = mutate(pristine, pristine.with_name("edited"), rule)
    assert run.status == pytest.ExitCode.TESTS_FAILED, run.output
    assert len(run.failed) == 1, run.output
    assert run.failed[0].startswith(rule.tests), run.output
    assert not NO_MISTAKE.search(run.output), run.output
