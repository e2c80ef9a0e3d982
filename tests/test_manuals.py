"""Manuals and reference are generated from the parsers and match the programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pcopy import __version__, errors
from pcopy.cli import prm, pstripe, ptar, pverify
from pcopy.cli.pcopy import help_or_version
from pcopy.cli.programs import PROGRAMS
from pcopy.fsio.preserve import PRESERVABLE_METADATA
from pcopy.launch.tool import JobResult
from pcopy.tasks.base.job import EXISTING_CHOICES, JobCounters
from pcopy.tools.arguments import RemoveArguments, TreeProgramArguments
from pcopy.tools.remove import RemoveJob

ROOT = Path(__file__).resolve().parents[1]
ALIASES = {"pcopy-tar": "ptar"}
"""Manual pages that refer to another page."""
MANUALS = sorted(page for page in (ROOT / "docs" / "man").glob("*.[15]") if page.stem not in ALIASES)

OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def run(command: Sequence[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def manual(name: str) -> str:
    """Return the source of a manual page without escapes of hyphens and fonts."""
    text = (ROOT / "docs" / "man" / f"{name}.1").read_text()
    return re.sub(r"\\f.|\\%", "", text).replace(r"\-", "-")


def test_manuals_and_reference_are_up_to_date() -> None:
    done = run([sys.executable, "docs/man/draw_manuals.py", "--check"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "python docs/man/draw_manuals.py draws them anew"


def test_manual_lists_exactly_the_options() -> None:
    reported = help_or_version(["--help"])
    assert reported is not None
    offered = set(OPTION.findall(reported.partition("examples:")[0]))
    assert len(offered) > 20
    explained = set(OPTION.findall(manual("pcopy").partition(".SH OPTIONS")[2].partition(".SH OUTPUT")[0]))
    assert explained == offered


def test_manual_lists_all_attributes_and_existing_policies() -> None:
    """They are in bold, as literal input."""
    page = (ROOT / "docs" / "man" / "pcopy.1").read_text()
    assert [word for word in (*PRESERVABLE_METADATA, *EXISTING_CHOICES) if rf"\fB\%{word}\fR" not in page] == []


def test_manual_of_pverify_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert pverify.main(["--help"]) == 0
    assert set(OPTION.findall(capsys.readouterr().out)) == set(
        OPTION.findall(manual("pverify").partition("OPTIONS")[2])
    )


def test_manual_of_prm_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert prm.main(["--help"]) == 0
    offered = set(OPTION.findall(capsys.readouterr().out))
    assert len(offered) > 10
    assert offered == set(OPTION.findall(manual("prm").partition("OPTIONS")[2]))


def test_manual_of_pstripe_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert pstripe.main(["--help"]) == 0
    offered = set(OPTION.findall(capsys.readouterr().out))
    assert len(offered) > 10
    assert offered == set(OPTION.findall(manual("pstripe").partition("OPTIONS")[2].partition("EXIT STATUS")[0]))


def test_manual_of_ptar_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert ptar.main(["--help"]) == 0
    offered = set(OPTION.findall(capsys.readouterr().out))
    assert len(offered) > 10
    assert offered == set(OPTION.findall(manual("ptar").partition("OPTIONS")[2].partition("EXIT STATUS")[0]))


def test_exit_statuses_and_keys_of_prm_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs/operations/removing.md").read_text(), re.MULTILINE)
    statuses = [errors.EXIT_OK, errors.EXIT_INCOMPLETE, errors.EXIT_REFUSED, errors.EXIT_INTERNAL, errors.EXIT_STOPPED]
    assert [int(row) for row in rows] == statuses
    assert re.findall(r"^(\d+)$", manual("prm"), re.MULTILINE) == rows
    preparation = RemoveJob(RemoveArguments(TreeProgramArguments((b"/nowhere/at/all",)), yes=True))
    reported = preparation.json_summary(JobResult(0, JobCounters(), None), 1.0, 1)
    page = (ROOT / "docs" / "man" / "prm.1").read_text()
    keys = page.partition("with the keys")[2].partition(r"\-\-progress")[0]
    explained = set(re.findall(r"\\fB\\%(\w+)\\fR", keys))
    assert explained == reported.keys()


@pytest.mark.parametrize("page", MANUALS, ids=lambda page: page.name)
def test_manuals_format_without_warnings_and_name_this_version(page: Path) -> None:
    kind = {".1": "User Commands", ".5": "File Formats"}[page.suffix]
    head = f'.TH {page.stem.upper()} {page.suffix[1:]} "" "pcopy {__version__}" "{kind}"'
    assert page.read_text().splitlines()[0] == head
    if not shutil.which("groff"):
        pytest.skip("there is no groff here")
    done = run(["groff", "-man", "-ww", "-Tutf8", "-z", page])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ALIASES)
def test_manual_of_another_name_shows_the_page_of_the_program(name: str, tmp_path: Path) -> None:
    pages = tmp_path / "man1"
    pages.mkdir()
    for each in (name, ALIASES[name]):
        shutil.copy(ROOT / "docs" / "man" / f"{each}.1", pages)
    assert len((pages / f"{name}.1").read_text().splitlines()) == 1
    shown = [run(["man", "-P", "cat", "-M", tmp_path, each]) for each in (name, ALIASES[name])]
    assert [(each.returncode, each.stderr) for each in shown] == [(0, "")] * 2
    assert "create, list and extract tar archives" in " ".join(shown[0].stdout.split())
    assert shown[0].stdout == shown[1].stdout


def test_manual_of_configuration_files_lists_all_keys() -> None:
    """``--show-config`` lists the keys of each program, also those that are not set, but not aliases of options."""
    reported = set()
    for program in PROGRAMS:
        shown = run([sys.executable, ROOT / "bin" / program, "--show-config"]).stdout
        reported |= set(re.findall(r"^(?:# )?([a-z][\w-]+):", shown, re.MULTILINE))
    keys = set(re.findall(r"^\| `([\w-]+)` \|", (ROOT / "docs/reference/pcopy.yaml.md").read_text(), re.MULTILINE))
    assert keys - {"update", "no-preserve"} == reported
