"""The documentation tells the truth: what can be compared with the code is compared."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pcopy import __version__, errors
from pcopy.cli import pverify
from pcopy.cli.options import early_answer
from pcopy.cli.report import failure_json, summary_json
from pcopy.fsio.preserve import ATTRIBUTES
from pcopy.tasks import codec
from pcopy.tasks.job import EXISTING, Failure, Totals
from pcopy.tasks.phases import Phase

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
MANUALS = sorted((ROOT / "docs" / "man").glob("*.1"))

OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def commands() -> list[str]:
    """The README's shell blocks that install something: each is one line."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return [block.rstrip("\n") for block in blocks if "pip install" in block]


def manual(name: str) -> str:
    """A manual page's source with its hyphens and fonts undone."""
    text = (ROOT / "docs" / "man" / f"{name}.1").read_text()
    return re.sub(r"\\f.", "", text).replace(r"\-", "-")


def run(command: Sequence[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_readme_has_one_line_to_install_and_copy_and_one_to_install_and_test() -> None:
    copying, testing = commands()
    for command in (copying, testing):
        assert "\n" not in command
        assert "python3 -m venv .venv" in command
    assert re.search(r" && \.venv/bin/pcopy .* /tmp/\S+$", copying)
    assert testing.endswith(" && .venv/bin/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder")


def test_ci_ends_with_the_line_that_the_readme_gives_for_testing() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == commands()[1]


@pytest.mark.parametrize("script", ["bin/pcopy", "bin/pverify", "bin/install-debian-packages", ".ci/run"])
def test_scripts_can_be_executed(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("script", ["bin/install-debian-packages", ".ci/run"])
def test_scripts_have_no_syntax_errors(script: str) -> None:
    done = run(["bash", "-n", ROOT / script])
    assert (done.returncode, done.stderr) == (0, "")


def test_the_script_for_packages_knows_its_arguments() -> None:
    done = run([ROOT / "bin" / "install-debian-packages", "everything"])
    assert done.returncode == 2
    assert "usage:" in done.stderr


@pytest.mark.parametrize("flags", [[], ["-P"], ["-I"]])
@pytest.mark.parametrize("name", ["pcopy", "pverify"])
def test_launchers_run_from_anywhere(name: str, flags: list[str], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ROOT / "bin" / name)
    for launcher in (ROOT / "bin" / name, link):
        done = run([sys.executable, *flags, launcher, "--version"], cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{name} {__version__}\n", "")


def test_every_option_is_in_the_manual_and_no_other() -> None:
    told = early_answer(["--help"])
    assert told is not None
    offered = set(OPTION.findall(told.partition("examples:")[0]))
    assert len(offered) > 20
    explained = set(OPTION.findall(manual("pcopy").partition(".SH OPTIONS")[2].partition(".SH OUTPUT")[0]))
    assert explained == offered


def test_manual_knows_all_attributes_and_all_that_existing_takes() -> None:
    page = manual("pcopy")
    for word in (*ATTRIBUTES, *EXISTING):
        assert re.search(rf"^\.BR? {word}\b", page, re.MULTILINE), word


def test_pverify_offers_what_its_manual_says(capsys: pytest.CaptureFixture[str]) -> None:
    assert pverify.main(["--help"]) == 0
    assert set(OPTION.findall(capsys.readouterr().out)) == set(
        OPTION.findall(manual("pverify").partition("OPTIONS")[2])
    )


@pytest.mark.parametrize("page", MANUALS, ids=lambda page: page.name)
def test_manuals_are_clean_and_of_this_version(page: Path) -> None:
    assert page.read_text().splitlines()[0] == f'.TH {page.stem.upper()} 1 "" "pcopy {__version__}" "User Commands"'
    if not shutil.which("groff"):
        pytest.skip("there is no groff here")
    done = run(["groff", "-man", "-ww", "-Tutf8", "-z", page])
    assert (done.returncode, done.stderr) == (0, "")


def test_changes_tell_of_this_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_page_is_on_the_map() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert {*PAGES, *MANUALS} - {index} <= linked


@pytest.mark.parametrize("page", ["README.md", "docs/operations/errors.md"])
def test_all_statuses_are_explained(page: str) -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / page).read_text(), re.MULTILINE)
    statuses = [errors.OK, errors.INCOMPLETE, errors.REFUSED, errors.INTERNAL, errors.STOPPED]
    assert [int(row) for row in rows] == statuses
    assert re.findall(r"^\.B (\d+)$", manual("pcopy"), re.MULTILINE) == rows


def test_all_keys_of_the_summary_and_of_failures_are_explained() -> None:
    page = (ROOT / "docs" / "operations" / "errors.md").read_text()
    of_failures, of_summary = page.partition("## The summary, and `--json`")[::2]
    explained = {
        key for row in re.findall(r"^\| (`.*?) \|", of_summary, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }
    assert explained == json.loads(summary_json(Totals(), 1.0, 1, 0)).keys()
    explained = set(re.findall(r"^\| `(\w+)` \|", of_failures, re.MULTILINE))
    assert explained == json.loads(failure_json(Failure(b"name", "open", 2, ""))).keys()


def test_the_example_of_a_failure_is_what_pcopy_writes() -> None:
    page = (ROOT / "docs" / "operations" / "errors.md").read_text()
    assert failure_json(Failure(b"data/run7/core", "open", 13, "")) in page.splitlines()


def test_the_design_knows_all_tasks_and_phases() -> None:
    page = (ROOT / "docs" / "design" / "overview.md").read_text()
    rows = re.findall(r"^\| `?(\w+)`? \|", page, re.MULTILINE)
    tasks = [kind.__name__ for kind in codec._TYPES]
    assert sorted(tasks) == sorted(row for row in rows if row[0].isupper() and not row.isupper())
    assert [phase.name for phase in Phase] == [row for row in rows if row.isupper()]
