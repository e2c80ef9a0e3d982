"""Commands in the documentation: extracted from Markdown, and run in a sandbox with the paths that they name.

Pages use ``/data`` and ``/archive``. In a sandbox these are directories below a temporary one, and the output of
commands is translated back to the paths of the page.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tty
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt

from pcopy.cli import programs
from pcopy.cli.program import ProgramCommandLine
from pcopy.cli.programs import load_program
from tests.support.command import REPOSITORY, RUN, start

PROGRAMS: dict[str, ProgramCommandLine] = {name: load_program(name) for name in programs.PROGRAMS}
JOB = "a1b2c3d4e5"
"""The name of a job in the documentation."""

_PLACES = ("archive", "backup", "data", "home", "lustre", "mnt", "new", "nfs", "old", "scratch", "srv", "var")
_PLACE = re.compile(rf"(?<![\w./~$}}-])/(?=(?:{'|'.join(_PLACES)})(?![\w.-]))")
_SHELL = re.compile(r"[|&;<>$()`*~]|^\s*(?:if|for|while|export)\b|^\w+=")
"""Characters with a meaning for the shell."""

_LAUNCHER = re.compile(r"^(?:mpiexec(?:\.hydra)?|srun)\s+(?:--?\w[\w-]*(?:=\S+|\s+(?=\d)\d+)?\s+)*")
_CONFIGURATION = "pdbench: {time: 0.01, files: 300, size: 1M, repeat: 1}\n"
"""The configuration file in a sandbox: measurements as long as in the pages would take half a minute each."""

_AMOUNTS = ((r"(pdbench .*--time) 2\b", r"\1 0.1"), (r"(pdbench .*--size) 1G\b", r"\1 16M"))
"""Options in commands, and shorter values that suffice to test them."""

_VARIES = (
    (re.compile(r"\b[0-9a-f]{10}\b"), JOB),
    (re.compile(r"\b\d+ (of \d+), \d[\d.]* [KMGT]?i?B$", re.MULTILINE), r"N \1, N"),
    (re.compile(r"^\d[\d.]* [KMGT]?i?B by this run", re.MULTILINE), "N by this run"),
    (re.compile(r"^  kept: \d[\d.]* [KMGT]?i?B of", re.MULTILINE), "  kept: N of"),
    (re.compile(r"\b\d[\d.,]* (s|(?:[KMGT]i)?B/s|items/s)(?![\w/])"), r"N \1"),
    (re.compile(r"\b\d+ ranks?\b"), "N ranks"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d)?"), "TIME"),
)
"""Parts of the output that differ from run to run."""


class Block(NamedTuple):
    """Commands of a page, and the output that the page shows (None: none is shown)."""

    page: str
    line: int
    text: str
    output: str | None


def blocks(page: Path) -> Iterator[Block]:
    tokens = _markdown(page)
    name = str(page.relative_to(REPOSITORY))
    for number, token in enumerate(tokens):
        if token.type == "fence" and token.info == "sh":
            after = tokens[number + 1] if number + 1 < len(tokens) else None
            is_output = after is not None and after.type == "fence" and after.info == "text"
            yield Block(name, (token.map or [0])[0] + 2, token.content, after.content if after and is_output else None)


def other_blocks(page: Path) -> list[str]:
    """The contents of blocks that are not marked as commands."""
    tokens = _markdown(page)
    return [token.content for token in tokens if token.type == "code_block" or _is_other_fence(token.type, token.info)]


def _is_other_fence(kind: str, info: str) -> bool:
    return kind == "fence" and info != "sh"


def in_prose(page: Path) -> list[str]:
    """Inline code of a page."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    inline = [child for token in tokens for child in token.children or []]
    return [child.content for child in inline if child.type == "code_inline"]


@functools.cache
def _markdown(page: Path) -> list:  # type: ignore[type-arg]
    """The blocks of ``page``, without parsing their text: each worker reads all pages when it collects tests."""
    return MarkdownIt("commonmark").disable(["inline", "text_join"]).parse(page.read_text())


def lines_of(text: str) -> list[str]:
    """The lines of a block, with continuation lines joined, and without comments and empty lines."""
    joined = text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def without_launcher(line: str) -> str:
    return _LAUNCHER.sub("", line)


def runs_of_ours(line: str) -> list[list[str]]:
    """Return the arguments of each of our programs that a line of shell runs, with the name of the program first."""
    found = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set("();<>|&"):
            place = next((n for n, w in enumerate(words) if os.path.basename(w) in PROGRAMS), None)
            if place is not None:
                found.append([os.path.basename(words[place]), *words[place + 1 :]])
            words = []
        else:
            words.append(word)
    return found


def parse(words: Sequence[str]) -> None:
    """Parse the arguments; raise ``RequestRefused`` if the program refuses them."""
    program = PROGRAMS[words[0]]
    if (
        program.help_or_version_text(words[1:]) is None
        and not program.parse_options_and_operands(words[1:]).values.show_config
    ):
        program.parse_command_line(words[1:], use_config_files=False)


class Done(NamedTuple):
    line: str
    status: int
    output: str


class Sandbox:
    """A directory with the paths that pages name, in which commands run as if it were the root directory."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.work = top / "home" / "ann"
        self.job = ""
        self._programs = top / "bin"
        for place in ("bin", "state", "tmp", "config", *_PLACES, "home/ann"):
            (top / place).mkdir(parents=True)
        for name in PROGRAMS:
            self._script(name, f'exec {shlex.join([sys.executable, *RUN[name]])} "$@"')
        for name in ("srun", "mpiexec"):
            self._script(name, 'while [ "${1#-}" != "$1" ]; do [ "$1" = -n ] && shift; shift; done; exec "$@"')
        (top / "config/pcopy.yaml").write_text(_CONFIGURATION)
        self.environment = {
            "HOME": str(self.work),
            "XDG_STATE_HOME": str(top / "state"),
            "XDG_CONFIG_HOME": str(top / "config"),
            "TMPDIR": str(top / "tmp"),
            "TERM": "dumb",  # no progress bar
        }

    def _script(self, name: str, line: str) -> None:
        file = self._programs / name
        file.write_text(f"#!/bin/sh\n{line}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def keep_a_job(self) -> None:
        """Leave an unfinished job in the state directory, in which an item has failed."""
        source = self.top / "kept"
        source.mkdir()
        (source / "file").write_text("content")
        (self.top / "kept.copy" / "file" / "in the way").mkdir(parents=True)
        self.run(f"pcopy -T {source} {source}.copy")
        self.job = json.loads(self.run("pcopy --jobs --json").output)["job"]

    def run(self, line: str, timeout: float = 60) -> Done:
        """Run a line, or a script of several lines."""
        text = self._there(line)
        if text.startswith("cd ") and "\n" not in text:
            self.work /= text.split()[1]
            return Done(line, 0, "")
        if _SHELL.search(_without_quoted(text)) or "\n" in text:
            return self._run_shell(line, text, timeout)
        words = shlex.split(without_launcher(text), comments=True)
        if words[0] not in PROGRAMS:
            return self._run_shell(line, text, timeout)
        program, *arguments = words
        terminal, far = _terminal()
        with os.fdopen(far, "wb", buffering=0) as end:
            process = start(
                *arguments, program=program, env=self.environment, cwd=self.work, umask=0o022, stdout=end, stderr=end
            )
        output = _read(terminal)
        return Done(line, process.wait(timeout), self._here(output))

    def _run_shell(self, line: str, text: str, timeout: float) -> Done:
        environment = {
            **os.environ,
            **self.environment,
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PYTHONSAFEPATH": "1",
            "LC_ALL": "C.UTF-8",
        }
        terminal, far = _terminal()
        with os.fdopen(far, "wb", buffering=0) as end:
            process = subprocess.Popen(
                ["bash", "-c", text],
                cwd=self.work,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=end,
                stderr=end,
            )
        output = _read(terminal)
        return Done(line, process.wait(timeout), self._here(output))

    def _there(self, text: str) -> str:
        text = _PLACE.sub(f"{self.top}/", text).replace("ann:staff", f"{os.geteuid()}:{os.getegid()}")
        for asked, enough in _AMOUNTS:
            text = re.sub(asked, enough, text)
        return text.replace(JOB, self.job) if self.job else text

    def _here(self, output: bytes) -> str:
        return output.decode(errors="backslashreplace").replace(f"{self.top}/", "/")


def _terminal() -> tuple[int, int]:
    """Both ends of a terminal, which preserves the order of two output streams and all bytes."""
    ours, far = os.openpty()
    tty.setraw(far)
    return ours, far


def _read(terminal: int) -> bytes:
    reported = []
    with os.fdopen(terminal, "rb", buffering=0) as end:
        while True:
            try:
                reported.append(end.read(65536))
            except OSError:  # Linux reports in this way that the other side is closed everywhere
                return b"".join(reported)


def is_script(text: str) -> bool:
    """Return True if the lines of a block depend on each other, so that one shell has to run them."""
    return re.search(r"^\s*(?:if|for|while|export)\b|^\w+=", text, re.MULTILINE) is not None


def _without_quoted(text: str) -> str:
    """Return the text without comments and without quoted parts."""
    return re.sub(r"'[^']*'|(?:^|(?<=\s))#.*", "", text)


def is_output(shown: str, real: str) -> bool:
    """Return True if the output is as the page shows it. ``…`` stands for any text in a line, alone for any lines."""
    shown, real = _alike(shown), _alike(real)
    pattern = "".join(
        "(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.split("…"))) + "\n"
        for line in shown.rstrip("\n").split("\n")
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in real.rstrip("\n").split("\n"))) is not None


def _alike(text: str) -> str:
    for varies, name in _VARIES:
        text = varies.sub(name, text)
    return "\n".join(line.rstrip() for line in text.split("\n"))


def copy_of(template: Sandbox, top: Path) -> Sandbox:
    """Copy a sandbox."""
    sandbox = Sandbox(top)
    for place in _PLACES:
        shutil.copytree(template.top / place, top / place, symlinks=True, dirs_exist_ok=True)
    return sandbox
