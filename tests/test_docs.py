"""The documentation is correct: statements that can be compared with the code are compared."""

from __future__ import annotations

import ast
import errno
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from xml.etree import ElementTree

import pytest

import pcopy.tasks
import pcopy.tools
from pcopy import __version__, errors
from pcopy.checkpoint.layout import JOB_FORMAT_VERSION, OTHER_VERSION_ADVICE
from pcopy.cli.pcopy import help_or_version, parse
from pcopy.cli.programs import PROGRAMS, load_program
from pcopy.fsio.backend.choose import backend_name
from pcopy.launch.tool import JobResult
from pcopy.report.screen import failure_json
from pcopy.tasks.base.codec import FIELD_VALUE_TYPES
from pcopy.tasks.base.job import Failure, JobCounters
from pcopy.tasks.base.kind import KIND_BY_CODE, TASK_FORMAT
from pcopy.tasks.base.phases import Phase
from pcopy.tools.summary import copy_json_summary

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = sorted([README, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
TEXTS = sorted((ROOT / "docs" / "man").glob("*.md"))
"""The source of manuals and reference; its links are correct in the generated pages."""

EXAMPLES = ("examples/mpiexec.sh", "examples/pbs.sh", "examples/slurm.sh")
SHELL_SCRIPTS = ("bin/build-backend", "bin/install-debian-packages", ".ci/run", *EXAMPLES)

OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z0][\w-]*")
LINK = re.compile(r"\]\(([^)#]+)[^)]*\)")


def commands() -> list[str]:
    """Return the shell blocks of the README that install something; each is one line."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)
    return [block.rstrip("\n") for block in blocks if "install-debian-packages" in block]


def run(command: Sequence[str | Path], cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_readme_has_one_line_each_to_install_and_copy_or_test() -> None:
    copying, testing = commands()
    for command in (copying, testing):
        assert "\n" not in command
        assert "python3 -m venv .venv" in command
    assert re.search(r" && \.venv/bin/pcopy .* /tmp/\S+$", copying)
    assert testing.endswith(" && .venv/bin/python -m pytest -n 5 --dist loadfile --no-loadscope-reorder")


def test_ci_ends_with_the_test_command_of_the_readme() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == commands()[1]


@pytest.mark.parametrize(
    "script",
    [
        *(f"bin/{program}" for program in PROGRAMS),
        *SHELL_SCRIPTS,
    ],
)
def test_scripts_can_be_executed(script: str) -> None:
    assert (ROOT / script).stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("script", SHELL_SCRIPTS)
def test_scripts_have_no_syntax_errors(script: str) -> None:
    done = run(["bash", "-n", ROOT / script])
    assert (done.returncode, done.stderr) == (0, "")


def test_package_script_refuses_unknown_arguments() -> None:
    done = run([ROOT / "bin" / "install-debian-packages", "everything"])
    assert done.returncode == 2
    assert "usage:" in done.stderr


@pytest.mark.parametrize("flags", [[], ["-P"], ["-I"]])
@pytest.mark.parametrize("name", PROGRAMS)
def test_launchers_run_from_anywhere(name: str, flags: list[str], tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(ROOT / "bin" / name)
    for launcher in (ROOT / "bin" / name, link):
        done = run([sys.executable, *flags, launcher, "--version"], cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (
            0,
            f"{name} {__version__} (backend {backend_name()})\n",
            "",
        )


def test_picture_of_a_run_matches_its_text_and_fetches_nothing() -> None:
    picture = (ROOT / "docs" / "run.svg").read_text()
    said = "".join(f"{text.strip()}\n" for text in ElementTree.fromstring(picture).itertext())
    for line in ("pcopy results archive", "pcopy --resume", "stopped early (status 75)", "pverify: the same"):
        assert f"{line}\n" in said.replace("\u00a0", " "), line
    assert re.findall(r"(?<!xmlns=.)https?:", picture) == []


def test_changelog_has_this_version() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize("page", sorted({*PAGES} - {*TEXTS}), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_existing_files(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), target


def test_index_links_to_every_page() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    assert {*PAGES} - {index, *TEXTS} <= linked


def test_all_exit_statuses_are_documented() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "operations" / "errors.md").read_text(), re.MULTILINE)
    in_readme = README.read_text().partition("Exit statuses: ")[2].partition("\n\n")[0]
    assert re.findall(r"\*\*(\d+)\*\*", in_readme) == rows
    statuses = [errors.EXIT_OK, errors.EXIT_INCOMPLETE, errors.EXIT_REFUSED, errors.EXIT_INTERNAL, errors.EXIT_STOPPED]
    assert [int(row) for row in rows] == statuses
    reference = (ROOT / "docs/reference/pcopy.md").read_text().partition("## Exit status")[2]
    assert re.findall(r"^- `(\d+)`: ", reference, re.MULTILINE) == rows


def test_all_keys_of_summary_and_failures_are_documented() -> None:
    page = (ROOT / "docs" / "operations" / "errors.md").read_text()
    of_failures, of_summary = page.partition("## The summary, and `--json`")[::2]
    explained = {
        key for row in re.findall(r"^\| (`.*?) \|", of_summary, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)
    }
    assert explained == copy_json_summary(JobResult(0, JobCounters(), None), 1.0, 1).keys() | {"filters"}
    explained = set(re.findall(r"^\| `(\w+)` \|", of_failures, re.MULTILINE))
    assert explained == json.loads(failure_json(Failure(b"name", "open", 2, ""))).keys()


def test_documented_example_of_a_failure_is_correct() -> None:
    page = (ROOT / "docs" / "operations" / "errors.md").read_text()
    assert failure_json(Failure(b"data/run7/core", "open", 13, "")) in page.splitlines()


def kinds() -> dict[int, str]:
    """Return the names of all kinds of tasks by their codes."""
    for package in (pcopy.tasks, pcopy.tools):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    return {code: kind.__name__ for code, kind in KIND_BY_CODE.items()}


def test_design_pages_list_all_tasks_and_phases() -> None:
    """Each page has a table of its tasks, and one page has the table of the phases."""
    pages = {page.name: page.read_text() for page in (ROOT / "docs" / "design").glob("*.md")}
    tables = [
        table for page in pages.values() for table in re.findall(r"^\| task \|.*\n((?:\|.*\n)*)", page, re.MULTILINE)
    ]
    tasks = [task for table in tables for task in re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)]
    assert sorted(tasks) == sorted(kinds().values())
    assert [phase.name for phase in Phase] == re.findall(r"^\| ([A-Z_]+) \|", pages["phases.md"], re.MULTILINE)


def test_table_of_kinds_matches_the_code() -> None:
    program = ROOT / "docs" / "formats" / "draw_kinds.py"
    page = (ROOT / "docs" / "formats" / "kinds.md").read_text()
    assert run([sys.executable, program]).stdout == page, f"python {program.relative_to(ROOT)} draws it anew"
    rows = re.findall(r"^\| (\d+) \| `([A-Z]\w+)` \|", page, re.MULTILINE)
    reported = {int(code): name for code, name in rows}
    assert {code: name for code, name in reported.items() if code < 200} == kinds()
    assert len(reported) == len(rows) == len(kinds()) + len(FIELD_VALUE_TYPES)
    assert f"| {TASK_FORMAT} | the encoding of tasks |" in page
    assert f"| {JOB_FORMAT_VERSION} | all files of a job |" in page


def test_flow_diagram_is_up_to_date() -> None:
    program = ROOT / "docs" / "design" / "draw_flow.py"
    assert run([sys.executable, program]).stdout == (ROOT / "docs" / "design" / "flow.svg").read_text()
    named = re.findall(r"\b(?:engine|tasks|fsio|checkpoint|report)/[\w/]*(?:\.py)?", program.read_text())
    assert len(named) > 8
    assert [name for name in named if not (ROOT / "pcopy" / name).exists()] == []


def test_functions_listed_for_the_copy_of_one_file_exist() -> None:
    page = (ROOT / "docs" / "design" / "one_file.md").read_text()
    rows = re.findall(r"^\| \d+ \| `([\w.]+)` \| `(\S+)` \|", page, re.MULTILINE)
    assert len(rows) > 30
    assert [(name, path) for name, path in rows if name not in defined_in(ROOT / path)] == []


def defined_in(file: Path) -> set[str]:
    """Return the functions of a module or of a C file, and the methods of classes as ``Class.method``."""
    if file.suffix == ".c":
        return set(re.findall(r"^\w[\w *]*?(\w+)\(", file.read_text(), re.MULTILINE))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    body = ast.parse(file.read_bytes()).body
    methods = {
        f"{node.name}.{inner.name}"
        for node in body
        if isinstance(node, ast.ClassDef)
        for inner in node.body
        if isinstance(inner, functions)
    }
    return methods | {node.name for node in body if isinstance(node, functions)}


PATH = re.compile(r"`((?:pcopy|tests|docs|bench)/[\w/]+\.\w+)`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_named_in_the_docs_exist(page: Path) -> None:
    assert [name for name in PATH.findall(page.read_text()) if not (ROOT / name).exists()] == []


WALKING_PROGRAMS = tuple(name for name in PROGRAMS if name not in ("pbcast", "pdbench"))
WAYS = ("whole", "new", "look", "slow")
"""How a row of the walk treats the items that an option concerns."""


def test_page_on_the_walk_says_of_each_option_how_a_row_treats_it() -> None:
    """Each option of each program that walks trees is in the table, or among the options that concern no item."""
    page = (ROOT / "docs" / "design" / "walk.md").read_text().partition("\n## Options\n")[2]
    before, _, after = page.partition("These options concern no item")
    rows = re.findall(r"^\| (`--.*?`) \| (.*?) \| (\w+) \| (.*) \|$", before, re.MULTILINE)
    listed = [
        (option, program)
        for options, programs, _, _ in rows
        for option in re.findall(r"`--(.*?)`", options)
        for program in (WALKING_PROGRAMS if programs == "all" else programs.split(", "))
    ]
    assert [each for each in listed if listed.count(each) > 1] == []
    assert {word for _, _, word, _ in rows} == set(WAYS)
    assert [options for options, _, _, reason in rows if not reason] == []
    table = {(option.partition("=")[0], program) for option, program in listed}
    without = re.findall(r"`--([\w-]+)`", after.partition("\n\n")[0])
    offered = {(option.key, name) for name in WALKING_PROGRAMS for option in load_program(name).options if option.help}
    assert table - offered == set()
    missing = sorted(each for each in offered - table if each[0] not in without)
    assert not missing, "\n".join(f"| `--{option}` | {program} | | |" for option, program in missing)
    assert sorted({option for option, _ in offered - table}) == without


def test_table_of_constants_is_complete_with_reasons() -> None:
    program = ROOT / "docs" / "design" / "draw_constants.py"
    page = (ROOT / "docs" / "design" / "constants.md").read_text()
    assert run([sys.executable, program]).stdout == page, f"python {program.relative_to(ROOT)} draws it anew"
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| `(\S+)` \| (.*) \|$", page, re.MULTILINE)
    assert len(rows) > 150
    assert [name for name, _, _, reason in rows if len(reason) < len("Bytes.")] == []
    assert ("MAX_SMALL_FILE_BYTES", "`4 << 20`", "pcopy/fsio/backend/interface.py") in [row[:3] for row in rows]


HERE = {
    "as it is": "",
    "another meaning": "",
    "the default: accepted": "",
    "the default: leave it out": "by default",
    "not in this version": "",
}
"""The statements of the page for users of cp and rsync about options, and the text with which pcopy refuses them."""


def options_of_others() -> list[tuple[str, str]]:
    """Return each option that the page names, and the text about it."""
    page = (ROOT / "docs" / "operations" / "from_cp_and_rsync.md").read_text().partition("## Options of cp")[2]
    rows = re.findall(r"^\| (`-.*?) \| (.*?) \|", page, re.MULTILINE)
    return [(option, here) for words, here in rows for option in re.findall(r"`(.*?)`", words)]


@pytest.mark.parametrize(("option", "here"), options_of_others())
def test_options_of_cp_and_rsync_match_the_page(option: str, here: str) -> None:
    reported = help_or_version(["--help"])
    assert reported is not None
    offered = set(OPTION.findall(reported.partition("examples:")[0]))
    name, _, value = option.partition("=")
    if here in ("as it is", "another meaning", "the default: accepted"):
        assert name in offered
        if name not in (
            "-h",
            "-n",
            "--existing",
            "--chown",
            "-0",
            "--from0",
            "--exclude-from",
            "--include",
            "--max-delete",
        ):  # -h works alone; the others need a valid value or another option
            parse([option, "SRC", "DST"])
        return
    assert name not in offered or value == "context"
    with pytest.raises(errors.RequestRefused) as refusal:
        parse([option, "SRC", "DST"])
    expected = here.removeprefix("write ").replace("`", "") if here.startswith("write ") else HERE[here]
    assert expected in str(refusal.value)


def texts() -> str:
    """All text that the program and the system can print, one line for each string in the code."""
    lines = [os.strerror(number) for number in errno.errorcode]
    for path in (ROOT / "pcopy").rglob("*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                lines.append(node.value)
    return "\n".join(lines)


PUT_IN = frozenset(
    (
        *("pcopy", "or", "--resume", "signature", "works", "source", "it,", "SIGKILL", "with", "is", "remove"),
        *("PCOPY_BACKEND", "PCOPY_BACKEND=c,"),
    )
)
"""Variable words in messages, or places where the code joins two strings."""


def is_said(words: list[str], known: str) -> bool:
    """Return True if the words are one string of the code, or two with a variable word in between."""
    if " ".join(words) in known:
        return True
    return any(
        word in PUT_IN and " ".join(words[:place]) in known and " ".join(words[place + 1 :]) in known
        for place, word in enumerate(words)
    )


def test_documented_messages_match_those_of_the_program() -> None:
    page = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
    firsts = re.findall(r"^\| (.*?) \|", page, re.MULTILINE)
    messages = [quoted for first in firsts for quoted in re.findall(r"`(.*?)`", first) if " " in quoted]
    assert len(messages) > 50
    known = texts()
    for message in messages:
        for piece in re.split("[…:;]", message):
            assert is_said(piece.strip(" ,").split(), known), (message, piece)


def test_documented_refusal_of_another_job_version_is_correct() -> None:
    page = (ROOT / "docs" / "operations" / "again.md").read_text()
    line = f"version {JOB_FORMAT_VERSION - 1} of pcopy's jobs; this pcopy reads version {JOB_FORMAT_VERSION}; "
    line += OTHER_VERSION_ADVICE.replace("JOB", "a1b2c3d4e5")
    assert line in page


def test_checkpoint_page_describes_the_current_version() -> None:
    page = " ".join((ROOT / "docs" / "formats" / "checkpoint.md").read_text().split())
    heads = [
        f"`pcopy job {JOB_FORMAT_VERSION} DIGEST`",
        f'("pcopy-checkpoint", {JOB_FORMAT_VERSION}, run',
        f'("pcopy-base", {JOB_FORMAT_VERSION}, run',
    ]
    assert [head for head in (f"This is version {JOB_FORMAT_VERSION}:", *heads) if head not in page] == []


SEEN_FROM_TWO_SIDES = {"JobDirector", "WakeDescriptor"}
"""Classes with one meaning, each repeated with the parts that one folder needs."""


def test_class_names_are_unique() -> None:
    places = defaultdict(set)
    for file in sorted((ROOT / "pcopy").rglob("*.py")):
        for name in re.findall(r"^class ([A-Z]\w*)", file.read_text(), re.MULTILINE):
            places[name].add(file)
    assert {name for name, files in places.items() if len(files) > 1} == SEEN_FROM_TWO_SIDES


def test_glossary_defines_each_term_once_and_locates_it() -> None:
    page = (ROOT / "docs" / "design" / "glossary.md").read_text()
    rows = re.findall(r"^\| (\w[\w -]*) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    rows = [row for row in rows if row[0] != "term"]
    terms = [term for term, _, _ in rows]
    assert len(terms) > 30
    assert sorted(set(terms)) == sorted(terms)
    for term, _, place in rows:
        match = re.fullmatch(r"(?:`([\w.]+)` in )?`(pcopy/[\w/]+\.py)`", place)
        assert match is not None, (term, place)
        name, path = match.groups()
        text = (ROOT / path).read_text()
        assert all(re.search(rf"\b{part}\b", text) for part in (name or "").split(".")), (term, place)
