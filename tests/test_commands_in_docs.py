"""Every command in README and docs is run in a sandbox, and has the expected status.

A table lists commands that need another machine, another user or a terminal, with the reason; the arguments of our own
programs in them are at least parsed. Output shown after a command is that of the command (``…`` stands for any text).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.walk.expression import ARGUMENT_COUNTS
from tests.support.documented import (
    JOB,
    PROGRAMS,
    Block,
    Sandbox,
    blocks,
    copy_of,
    in_prose,
    is_output,
    is_script,
    lines_of,
    other_blocks,
    parse,
    runs_of_ours,
    without_launcher,
)

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "man"),
]
STORIES = ("docs/howto/migrate.md", "docs/howto/mirror.md", "docs/tutorial.md")
"""Pages in which each block continues the previous one."""


class Apart(NamedTuple):
    """Commands that the sandbox does not run."""

    pattern: str
    reason: str


NOT_RUN = (
    Apart(r"pip install|bin/install|bin/build-backend|mkdocs", "installs; the CI begins with it"),
    Apart(
        r"pip (wheel|download)|^module load|^conda |^(ln|cp) -r?s .*/pcopy-env/|^mkdir -p ~/\.local/bin|^rm -rf \.venv|"
        r"--without-pip",
        "installs, or needs another machine",
    ),
    Apart(r"^python3? -m (bench|tests)", "takes long: benchmarks, campaigns"),
    Apart(r"\bpstripe\b", "needs Lustre; tests/lustre runs it"),
    Apart(
        r'^(sbatch|qsub|sh mpiexec\.sh) |"\$(2|DST)"', "needs a scheduler, or hosts; tests/launch/test_schedulers.py"
    ),
    Apart(r"venv/bin/activate", "there is no such environment in the sandbox"),
    Apart(r"libmpich", "needs Debian's MPICH"),
    Apart(r"^prm (?!.*--yes|.*--dry-run|.*-f)", "asks on a terminal; tests/e2e/test_prm.py answers"),
)
STATUSES = (
    (r"^(?!docs/tutorial).*: pcopy --resume", {1}, "the job that the sandbox keeps has an item that fails"),
    (r"^docs/howto/differences.md: pverify results ", {1}, "there are differences"),
    (r"^docs/operations/suite.md: pverify ", {1}, "there are differences"),
    (r"^docs/operations/examples.md: pverify --compare", {1}, "there are differences"),
    (r"^docs/tutorial.md: pverify results", {0, 1}, "a damage is shown"),
    (r"^docs/tutorial.md: timeout ", {75}, "it is stopped"),
    (r"^docs/tutorial.md: pcopy --resume", {0}, "its job can be finished"),
)
"""Nonzero statuses that commands (each with its page) have in the sandbox, and the reason."""


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """The sandbox before the commands of a page are run: data, copies and signatures."""
    sandbox = Sandbox(tmp_path_factory.mktemp("template"))
    top = sandbox.top
    for tree in (
        "data",
        "home/ann/results",
        "scratch/results",
        "scratch/run7",
        "scratch/run8",
        "scratch/run9",
        "scratch/data",
        "old/data",
    ):
        make_tree(top / tree)
    for tree in (
        "srv",
        "nfs/data",
        "lustre/data",
        "lustre/a/data",
        "lustre/old/data",
        "home/ann/a",
        "home/ann/b",
        "home/ann/c",
        "home/ann/big",
    ):
        make_tree(top / tree)
    for place in ("lustre/b", "lustre/new", "lustre/home/ann", "home/ann", "mnt/data", "var/lib/node_exporter"):
        (top / place).mkdir(parents=True, exist_ok=True)
    (top / "home/ann/file").write_text("content\n")
    (top / "home/ann/wanted.txt").write_text("run7/core\nrun8\n")
    for name in ("data", "results"):
        source = "/data" if name == "data" else name
        reported = sandbox.run(f"pcopy --signature {name}.sig --manifest {name}.manifest {source} /archive")
        assert reported.status == 0, reported
    return sandbox


def make_tree(top: Path) -> None:
    for name in ("run7/core", "run7/mesh.h5", "run8/core", "notes.txt"):
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{name}\n" * 500)
    (top / "newest").symlink_to("run8")
    (top / "stamp").touch()
    os.utime(top / "stamp", (0, 0))


def is_apart(line: str) -> bool:
    return any(re.search(apart.pattern, line) for apart in NOT_RUN)


def commands(block: Block) -> Iterator[str]:
    """Return the commands to run: each line, or all lines if they are one script."""
    if is_script(block.text):
        yield block.text
    else:
        yield from lines_of(block.text)


def play(sandbox: Sandbox, block: Block) -> None:
    if not sandbox.job and (JOB in block.text or "--resume" in block.text) and block.page not in STORIES:
        sandbox.keep_a_job()
    printed = ""
    for command in commands(block):
        if is_apart(command):
            continue
        done = sandbox.run(command)
        expected = next(
            (statuses for pattern, statuses, _ in STATUSES if re.search(pattern, f"{block.page}: {command}")), {0}
        )
        assert done.status in expected, f"{block.page}:{block.line}: {command}\n{done.output}"
        printed += done.output
    if block.output is not None:
        assert is_output(block.output, printed), f"{block.page}:{block.line}: this was printed:\n{printed}"


SINGLE = [block for block in all_blocks() if block.page not in STORIES]


@pytest.mark.parametrize("block", SINGLE, ids=lambda block: f"{block.page}:{block.line}")
def test_documented_commands_do_what_the_pages_say(block: Block, template: Sandbox, tmp_path: Path) -> None:
    for line in lines_of(block.text):
        for words in runs_of_ours(without_launcher(line)):
            parse([word.replace("ann:staff", "0:0") for word in words])
    if all(map(is_apart, lines_of(block.text))):
        return
    play(copy_of(template, tmp_path / "sandbox"), block)


@pytest.mark.parametrize("page", STORIES)
def test_commands_of_pages_with_dependent_blocks_work(page: str, template: Sandbox, tmp_path: Path) -> None:
    sandbox = copy_of(template, tmp_path / "sandbox")
    for block in blocks(ROOT / page):
        play(sandbox, block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_marked_as_such(page: Path) -> None:
    """This ensures that none is left out. A synopsis, with brackets or placeholders, is not a command."""
    if page.parent.name == "reference":
        return  # the parser generates their usage
    shown = [line for text in other_blocks(page) for line in text.splitlines()]
    ours = [line for line in shown if re.match(rf"\$? ?({'|'.join(PROGRAMS)}|mpiexec|srun) [^(]", line)]
    ours = [line for line in ours if not re.search(r"\[|SRC|PATH|JOB|AGE|\b[A-Z] [A-Z]\b|^pcopy \d", line)]
    assert ours == [], "commands stand between ```sh and ```"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_for_cron_and_systemd_are_valid(page: Path) -> None:
    for line in [line for text in other_blocks(page) for line in lines_of(text)]:
        found = re.match(r"ExecStart=(.*)|(?:[\d*/]+ ){5} ?(.*)", line)
        if found:
            words = runs_of_ours(found[1] or found[2])
            assert words, line
            for command in words:
                parse(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_options_of_commands_in_prose_exist(page: Path) -> None:
    for code in in_prose(page):
        program, *words = code.split() or [""]
        if program in PROGRAMS:
            assert unknown_options(program, words) == [], code


def unknown_options(program: str, words: list[str]) -> list[str]:
    """Return the unknown options. Tests of find are arguments of pwalk, too."""
    known = {*PROGRAMS[program].parser()._option_string_actions, *(ARGUMENT_COUNTS if program == "pwalk" else ())}
    letters = PROGRAMS[program].flag_letters
    options = [word.partition("=")[0].strip("[].,") for word in words if re.match(r"\[?--?[a-zA-Z]", word)]
    return [option for option in options if option not in known and option[1:].strip(letters)]
