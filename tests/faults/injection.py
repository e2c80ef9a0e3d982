"""Run pcopy with one fault, and describe the outcome by one letter of the table."""

from __future__ import annotations

import base64
import errno
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.worlds import OTHER, VICTIM, WORLDS, partly_written
from tests.support.command import REPOSITORY, Completed, pcopy, runs_in_c, show, summary
from tests.support.faults import require_strace
from tests.support.oracle import differences
from tests.support.walk import temporaries

KNOWN_NAMES = Path(__file__).with_name("known_names")
TEMPORARIES = [f".pcopy-0000000000-1-{rank}.{number}" for rank in range(2) for number in range(1, 5)]
HANDLES = [f"/proc/self/fd/{number}" for number in range(8, 40)]
"""Paths that represent symbolic links and FIFOs, which have no writable descriptors."""


@dataclass(frozen=True, slots=True)
class Row:
    """``calls`` on ``at`` fail in ``world``; they are reported as ``operation`` on one ``side``.

    ``at``: ``source`` or ``target`` (a descriptor of the victim), ``name`` (a look-up of the victim's name),
    ``temporary`` (a descriptor of its temporary file, or its name), ``handle`` (see ``HANDLES``), or ``anything``.
    ``when`` counts the calls from 1, each call separately, as strace does. ``in_c``: the same with the C backend, if
    that makes other calls before. ``besides``: a call that always fails, so that another method is used.
    """

    world: str
    calls: str
    at: str
    operation: str
    side: str
    outcomes: str
    when: str = "1+"
    failed: int = 1
    besides: str = ""
    in_c: str = ""

    def __str__(self) -> str:
        return f"{self.world}: {self.operation} ({self.calls} at {self.at}, {self.when})"

    def paths(self, source: Path, target: Path) -> list[str]:
        """Return the paths for the option ``-P`` of strace."""
        room = target / "room"
        names = [VICTIM, OTHER] if self.world == "links" else [VICTIM]
        return {
            "source": [str(source / "room" / name) for name in names],
            "target": [str(room / name) for name in names],
            "name": names,
            "temporary": [*TEMPORARIES, *(str(room / name) for name in TEMPORARIES)],
            "handle": HANDLES,
            "anything": [],
        }[self.at]


class Case:
    """A row with one error, run in its own directory."""

    def __init__(self, row: Row, error: str, source: Path, place: Path, when: str = "") -> None:
        self._row, self._error, self._source = row, error, source
        self._when = when or (row.in_c if runs_in_c() else "") or row.when
        self._target, self._log, self._errors = place / "target", place / "log", place / "errors"
        self._world = WORLDS[row.world]

    def observe(self) -> str:
        """Run the case and return its letter; raise ``AssertionError`` if no letter describes the outcome."""
        self._world.prepare_target(self._source, self._target)
        arguments = ["--json", "--errors", self._errors, *self._world.line(self._source, self._target)]
        search = os.pathsep.join([str(KNOWN_NAMES), str(REPOSITORY)])
        run = pcopy(*arguments, ranks=self._world.ranks, wrap=self._wrap(), env={"PYTHONPATH": search})
        assert b"(INJECTED)" in self._log.read_bytes(), f"no such call was seen: {show(run)}"
        try:
            return self._judge(run)
        except AssertionError as error:
            log = self._log.read_bytes()[-3000:].decode(errors="backslashreplace")
            raise AssertionError(f"{error}\n{show(run)}\n{log}") from error

    def _wrap(self) -> list[str]:
        require_strace()
        calls = ",".join("?" + call for call in self._row.calls.split())
        line = ["strace", "-f", "-qq", "--seccomp-bpf", "-o", str(self._log)]
        for path in self._row.paths(self._source, self._target):
            line += ["-P", path]
        line += ["-e", f"trace={calls}", "-e", f"inject={calls}:error={self._error}:when={self._when}"]
        if self._row.besides:
            line[-4:-4] = ["-P", str(self._source / "room" / VICTIM)]
            line[-3] += f",{self._row.besides}"
            line += ["-e", f"inject={self._row.besides}:error=EXDEV"]
        return line

    def _judge(self, run: Completed) -> str:
        assert temporaries(os.fsencode(self._target)) == [], "temporary files are left"
        source, target = self._world.compared(self._source, self._target)
        assert partly_written(source, target) == [], "a file is partly written"
        reported = self._reported()
        for line in reported:
            self._check(line)
        if run.returncode == 75:
            if not reported:  # another rank stopped the job before the failure was known
                assert json.loads(run.stdout)["failed"] == 0  # and what was found need not be copied
                assert f"stopped early: {os.strerror(getattr(errno, self._error))};".encode() in run.stderr
            return "S"
        totals = summary(run)
        unlike = self._unlike(source, target)
        elsewhere = [line for line in unlike if VICTIM not in line]
        assert elsewhere == [], "the rest of the tree is unlike"
        if run.returncode == 0:
            assert reported == [] and totals["failed"] == 0
            if totals["warnings"]:
                return "N"
            return "E" if any("missing" in line for line in unlike) else "-" if not unlike else f"0: {unlike}"
        assert run.returncode == 1 and reported
        if totals["failed"] == 0:
            assert unlike == []
            return "U"
        assert totals["failed"] == self._row.failed == len(reported), (
            f"{totals['failed']} failed, {len(reported)} reported"
        )
        vanished, other = totals["vanished"], totals["changed"]
        if vanished or other:
            assert self._row.failed in (vanished, other), (vanished, other)
            assert self._there(target, reported) == "F"
            return "V" if vanished else "C"
        return self._there(target, reported)

    def _unlike(self, source: Path, target: Path) -> list[str]:
        unlike = differences(source, target)
        if self._world.only_victim:  # the parent directory of the items is not copied
            return [line for line in unlike if not line.endswith((": b''", " ./"))]
        return unlike

    def _reported(self) -> list[dict[str, Any]]:
        if not self._errors.exists():
            return []
        return [json.loads(line) for line in self._errors.read_text().splitlines()]

    def _check(self, line: dict[str, Any]) -> None:
        """Check that path, operation and errno are those of the fault."""
        operation, side = self._row.operation, self._row.side
        if (operation, self._row.at, self._error) == ("open", "temporary", "ENOENT"):
            operation = "create"  # a missing file is created again, which fails here as well
        if self._error == "EMFILE" and (operation, self._row.at) == ("create", "name"):
            operation, side = "open", "source"  # the item is retried, and its source has the same name
        if self._error == "EMFILE" and (operation, self._row.at) == ("open", "temporary"):
            operation = "create"  # likewise; its temporary file is created again
        assert line["operation"] == operation, line
        assert line["errno"] == getattr(errno, self._error), line
        path = os.path.normpath(base64.b64decode(line["path_b64"]))
        root = self._source if side == "source" else self._target
        if self._row.operation == "syncfs":
            assert path == os.fsencode(root), line
        else:
            assert path.startswith(os.fsencode(root / "room" / VICTIM)), line

    def _there(self, target: Path, reported: list[dict[str, Any]]) -> str:
        """Return the letter for the state of the failed items in the target."""
        found = set()
        for line in reported:
            name = os.path.basename(os.fsdecode(base64.b64decode(line["path_b64"])))
            here, there = self._source / "room" / name, target / ("" if self._world.only_victim else "room") / name
            if not os.path.lexists(there):
                found.add("F")
            elif here.is_dir():
                found.add("W" if (there / "inside").exists() else "E")
            else:
                found.add("W" if not here.is_file() or there.read_bytes() == here.read_bytes() else "F")
        assert len(found) == 1, found
        return found.pop()
