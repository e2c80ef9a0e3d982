"""A refused request is reported as JSON, with its path and error number, if ``--errors`` names standard error."""

from __future__ import annotations

import base64
import errno
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pcopy.cli.pcopy import main as pcopy_main
from pcopy.errors import RequestRefused
from tests.support.command import pcopy
from tests.support.filesystems import mounted
from tests.support.users import require_root

REFUSALS: dict[str, tuple[str, list[str], str, int]] = {
    "missing source": ("pcopy", ["missing", "copy"], "missing", errno.ENOENT),
    "missing source of psync": ("psync", ["missing", "copy"], "missing", errno.ENOENT),
    "destination of the wrong type": ("pcopy", ["tree", "file"], "file", errno.ENOTDIR),
    "missing directory of the destination": ("pcopy", ["file", "absent/copy"], "absent/copy", errno.ENOENT),
    "several sources, no directory": ("pcopy", ["file", "tree", "absent"], "absent", errno.ENOENT),
    "copy onto itself": ("pcopy", ["-T", "file", "file"], "file", 0),
    "existing file": ("pverify", ["--create=file", "tree"], "{area}/file", errno.EEXIST),
    "tree that cannot be read": ("pverify", ["missing", "tree"], "missing", errno.ENOENT),
    "missing archive": ("ptar", ["-x", "-f", "missing.tar"], "missing.tar", errno.ENOENT),
    "missing directory of an archive": ("ptar", ["-c", "-f", "absent/a.tar", "tree"], "absent/a.tar", errno.ENOENT),
    "missing reference": ("pchmod", ["--reference=missing", "tree"], "missing", errno.ENOENT),
    "missing patterns": ("pwalk", ["--exclude-from=missing", "tree"], "missing", errno.ENOENT),
    "missing list": ("prm", ["--yes", "--from=missing", "tree"], "missing", errno.ENOENT),
    "operation without the option": ("ptar", ["-t", "-f", "missing.tar"], "", 0),
    "value that is no number": ("pcopy", ["--max-delete=x", "tree", "copy"], "", 0),
}


def records(area: Path, program: str, *words: str, **options: Any) -> list[dict[str, object]]:
    """Return the records that a refused command has printed on standard error."""
    (area / "tree").mkdir(exist_ok=True)
    (area / "file").write_bytes(b"contents")
    finished = pcopy(*words, program=program, cwd=area, **options)
    assert finished.returncode == 2
    lines = finished.stderr.splitlines()
    assert any(line.startswith(os.fsencode(program) + b": ") for line in lines)
    return [json.loads(line) for line in lines if line.startswith(b"{")]


@pytest.mark.parametrize("case", REFUSALS)
def test_record(case: str, area: Path) -> None:
    program, words, path, number = REFUSALS[case]
    path = path.format(area=area)
    (record,) = records(area, program, "--errors=/dev/stderr", *words)
    assert sorted(record) == ["errno", "message", "operation", "path", "path_b64"]
    assert (record["operation"], record["path"], record["errno"]) == ("refuse", path, number)
    assert base64.b64decode(str(record["path_b64"])) == path.encode()


def test_option_may_be_two_words(area: Path) -> None:
    (record,) = records(area, "pcopy", "missing", "copy", "--errors", "/dev/stderr")
    assert record["errno"] == errno.ENOENT


@pytest.mark.parametrize("more", [(), ("--errors=list",), ("--progress=json",)])
def test_without_the_option_there_is_no_record(area: Path, more: tuple[str, ...]) -> None:
    assert records(area, "pcopy", *more, "missing", "copy") == []
    assert not (area / "list").exists()


def test_option_after_two_dashes_is_a_path(area: Path) -> None:
    assert records(area, "pcopy", "missing", "--", "--errors=/dev/stderr") == []


def test_one_process_has_records_only_for_the_command_line_that_requests_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pcopy_main(["--errors=/dev/stderr", "-Z"]) == 2
    assert capsys.readouterr().err.startswith("{")
    assert pcopy_main(["-Z"]) == 2
    assert capsys.readouterr().err.startswith("pcopy: ")


def test_message_is_that_of_standard_error(area: Path) -> None:
    finished = pcopy("--errors=/dev/stderr", "--max-delete=" + "\n" + "x" * 20_000, "missing", "copy", cwd=area)
    record, line = finished.stderr.decode().splitlines()
    message = json.loads(record)["message"]
    assert line == f"pcopy: {message}"
    assert "characters not shown" in message


def test_record_under_a_launcher(area: Path) -> None:
    (record,) = records(area, "pcopy", "--errors=/dev/stderr", "missing", "copy", ranks=2, launcher="mpi")
    assert (record["path"], record["errno"]) == ("missing", errno.ENOENT)


def test_record_without_permission(area: Path) -> None:
    (area / "closed").mkdir()
    (area / "closed/file").write_bytes(b"contents")
    (area / "closed").chmod(0o700)
    (record,) = records(area, "pcopy", "--errors=/dev/stderr", "closed/file", "/dev/shm/none/copy", user=65534)
    assert (record["path"], record["errno"]) == ("closed/file", errno.EACCES)


UNWRITABLE: dict[str, tuple[str, list[str]]] = {
    "destination": ("pcopy", ["file", "{place}/copy"]),
    "mirror": ("psync", ["tree", "{place}/copy"]),
    "archive": ("ptar", ["-c", "-f", "{place}/a.tar", "tree"]),
    "signature": ("pverify", ["--create={place}/signature", "tree"]),
    "report": ("pcopy", ["--report={place}/report.html", "file", "copy"]),
    "job directory": ("pcopy", ["--checkpoint={place}/job", "file", "copy"]),
    "spool": ("pcopy", ["--spool={place}", "file", "copy"]),
    "measured directory": ("pdbench", ["{place}"]),
}
"""Requests that would create a file in a directory in which that is not possible."""


@pytest.mark.parametrize("case", UNWRITABLE)
@pytest.mark.parametrize("why", ["mounted read-only", "mode"])
def test_directory_in_which_no_file_can_be_created(area: Path, case: str, why: str) -> None:
    require_root("mount a file system, and run programs as another user")
    program, words = UNWRITABLE[case]
    area.chmod(0o777)
    (area / "mounted").mkdir()
    with mounted("tmpfs", area / "mounted") as place:
        place.chmod(0o755)
        if why == "mounted read-only":
            subprocess.run(["mount", "-o", "remount,ro", place], check=True)
        words = [word.format(place=place) for word in words]
        user = {"user": 65534} if why == "mode" else {}
        (record,) = records(area, program, "--errors=/dev/stderr", *words, **user)
    assert record["errno"] == (errno.EROFS if why == "mounted read-only" else errno.EACCES), record
    assert str(record["path"]).startswith(str(place))


HANDLED: dict[str, tuple[list[Exception], dict[str, Any], bytes, int]] = {
    "none": ([], {}, b"", 0),
    "system": ([OSError(errno.EIO, "failed")], {}, b"", errno.EIO),
    "system without a number": ([OSError("failed")], {}, b"", 0),
    "refusal": ([RequestRefused("no", path=b"a", code=errno.EPERM)], {}, b"a", errno.EPERM),
    "other, because of the system": ([OSError(errno.EIO, "failed"), ValueError()], {}, b"", errno.EIO),
    "other, because of a refusal": ([RequestRefused("no", path=b"a", code=3), ValueError()], {}, b"", 3),
    "path is given": ([RequestRefused("no", path=b"a", code=3)], {"path": b"b"}, b"b", 3),
    "number is given": ([RequestRefused("no", path=b"a", code=3)], {"code": 4}, b"a", 4),
    "neither is wanted": ([RequestRefused("no", path=b"a", code=3)], {"path": b"", "code": 0}, b"", 0),
}
"""Exceptions, each of which is raised while the one before is handled, the values given, and the resulting ones."""


def refused_while_handling(exceptions: list[Exception], given: dict[str, Any]) -> RequestRefused:
    if not exceptions:
        return RequestRefused("refused", **given)
    try:
        raise exceptions[0]
    except Exception:
        return refused_while_handling(exceptions[1:], given)


@pytest.mark.parametrize("case", HANDLED)
def test_path_and_number_are_those_of_the_handled_exception_unless_given(case: str) -> None:
    exceptions, given, path, number = HANDLED[case]
    refused = refused_while_handling(exceptions, given)
    assert (refused.path, refused.code) == (path, number)
