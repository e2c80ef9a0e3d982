"""Output about hostile names, attributes, links and files: control characters are escaped, and no line is forged."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, Argument, Completed, command, pcopy, pverify, show
from tests.support.faults import slowed
from tests.support.filesystems import Place

FORGED = b"\npcopy: all done, "
"""A name part that would begin a forged line of output."""
PARTS = (
    b"\x1b]0;title\x07",  # sets a terminal's title
    b"\x1b[2J\x1b[31m",  # clears it
    b"\r\t\x08\x7f\x0b",
    b"\xc2\x9b31m",  # CSI as a C1 control, in UTF-8
    b"\x9b31m",  # and as a byte
    "\u202egpj.\u202c".encode(),  # from right to left
    "\u2066\u200b\ufeff\u2028\u2029\u0085\u00ad".encode(),
    b"\xed\xa0\x80\xff",
    "\U000e0041\ue000\u0378".encode(),  # a tag, private use, not assigned
    b"back\\x1bslash",
    FORGED,
)
FORBIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
HOSTILE = b"evil" + b"".join(PARTS)


def assert_harmless(*outputs: bytes) -> None:
    """Assert that outputs are valid UTF-8 without terminal control characters and without a forged line."""
    for output in outputs:
        text = output.decode("utf-8")
        wrong = {character for character in text if character != "\n" and unicodedata.category(character) in FORBIDDEN}
        assert not wrong, (wrong, output)
        assert FORGED not in b"\n" + output, output


def assert_harmless_run(run: Completed, *files: Path, status: int, says: bytes = b"evil") -> Completed:
    """Assert the same of all outputs of a run, and of the decoded values of its JSON lines."""
    assert run.returncode == status, show(run)
    assert says in run.stdout + run.stderr, show(run)
    for output in (run.stdout, run.stderr, *[file.read_bytes() for file in files]):
        assert_harmless(output)
        for line in output.splitlines():
            if line.startswith(b"{"):
                assert_harmless(*[str(value).encode() for value in _values(json.loads(line))])
    return run


def _values(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _values(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _values(inner)
    else:
        yield value


@pytest.fixture
def source(area: Path) -> bytes:
    """A directory of a hostile name with files of hostile names, and links that lead to such names."""
    root = os.path.join(os.fsencode(area), HOSTILE)
    os.mkdir(root)
    for name in (*[b"evil" + part for part in PARTS], HOSTILE[:200]):
        with open(os.path.join(root, name), "wb") as file:
            file.write(b"contents")
    os.symlink(b"/nowhere/" + HOSTILE, os.path.join(root, b"dangling"))
    os.symlink(b".", os.path.join(root, b"round" + HOSTILE[:200]))
    return root


@pytest.fixture
def copy(area: Path, source: bytes) -> bytes:
    """A destination that has a non-empty directory at each name, so that every item fails."""
    path = os.path.join(os.fsencode(area), b"copy" + FORGED)
    for name in os.listdir(source):
        os.makedirs(os.path.join(path, name, b"full"))
    return path


PLAIN = ("--progress", "plain", "--progress-interval", "0.001", "-v")


def test_hostile_names_are_escaped_in_failures_progress_and_summaries(area: Path, source: bytes, copy: bytes) -> None:
    errors = area / "errors"
    for options in (PLAIN, ("--json",), ("-L",), ("--progress", "json", "--progress-interval", "0.001")):
        run = pcopy("-n", "2", *options, "--errors", errors, "-T", source, copy, "--checkpoint", "none")
        assert_harmless_run(run, errors, status=1)
        assert len(errors.read_bytes().splitlines()) >= len(PARTS)


def test_progress_bar_prints_no_control_characters_of_names(area: Path, source: bytes, copy: bytes) -> None:
    line, environment = command("--progress-interval", "0.001", "-T", source, copy, "-n", "1", "--checkpoint", "none")
    leader, follower = pty.openpty()
    run = subprocess.Popen(line, env={**environment, "TERM": "xterm"}, stdout=follower, stderr=follower)
    os.close(follower)
    output = b""
    try:
        while part := os.read(leader, 65536):
            output += part
    except OSError:  # EIO: the last process has closed the terminal
        pass
    os.close(leader)
    assert run.wait(60) == 1
    assert b"\x1b[" in output  # the bar's own
    for part in (b"\x1b]", b"\x1b[31m", b"\xc2\x9b", b"\x9b31", b"\x08", b"\x7f", "\u202e".encode()):
        assert part not in output, part
    assert b"\nall done" not in output.replace(b"pcopy: ", b"").replace(b"\r", b"")


def test_hostile_names_of_extended_attributes_are_escaped(area: Path, on: Place) -> None:
    """Setting the attribute fails, since ext4 has less space for attributes than XFS."""
    source, copy = on("xfs") / "source", on("ext4") / "copy"
    source.mkdir()
    (source / "file").write_bytes(b"contents")
    name = b"user." + HOSTILE[:200]
    os.setxattr(source / "file", name, b"v" * 60000)
    errors = area / "errors"
    run = assert_harmless_run(pcopy(source, copy, "--errors", errors), errors, status=1, says=b"setxattr user.evil")
    assert len([line for line in run.stderr.splitlines() if b"setxattr" in line]) == 1
    (reported,) = map(json.loads, errors.read_bytes().splitlines())
    escaped = reported["operation"].removeprefix("setxattr user.").encode()
    assert escaped.replace(rb"\\", b"").count(rb"\x1b") == 3
    assert rb"\\x1bslash" not in escaped or rb"back\\x1bslash" in escaped  # a backslash in the name is itself escaped


def test_hostile_names_are_escaped_by_pverify(area: Path, source: bytes, copy: bytes) -> None:
    for options in ((), ("--json",), PLAIN):
        assert_harmless_run(pverify(*options, source, copy), status=1)
    signature, manifest = area / "signature", area / "manifest"
    made = pverify("--create", signature, "--manifest", manifest, source)
    assert_harmless_run(made, signature, status=0, says=b"created")
    assert_harmless_run(pverify("--manifest", manifest, copy), status=1)
    text = manifest.read_bytes()
    first = text.index(b"evil")
    for damaged in (text[:first] + HOSTILE + text[first:], text.replace(b"evil", b"evil\\u001b\\u009b\\u202e")):
        manifest.write_bytes(damaged)
        assert_harmless_run(pverify("--manifest", manifest, source), status=2, says=b"manifest")
    signature.write_bytes(signature.read_bytes().replace(b"xxh3-128", HOSTILE))
    assert_harmless_run(pverify(signature, source), status=2, says=b"signature")


def test_hostile_names_are_escaped_in_job_listings(area: Path, source: bytes, copy: bytes) -> None:
    state = {"XDG_STATE_HOME": str(area / "state")}
    stopped = pcopy("--max-errors", "1", "-T", source, copy, env=state)
    assert_harmless_run(stopped, status=75)
    assert_harmless_run(pcopy("--jobs", env=state), status=0, says=b"back")
    assert_harmless_run(pcopy("--jobs", "--json", env=state), status=0)
    assert_harmless_run(pcopy("--resume", "--max-errors", "0", env=state), status=1)
    other = area / os.fsdecode(b"job" + HOSTILE[:200])
    stopped = pcopy("--max-errors", "1", "-T", source, copy, "--checkpoint", other, env=state)
    assert_harmless_run(stopped, status=75, says=b"to go on")
    (area / "state/pcopy" / os.fsdecode(HOSTILE[:200])).mkdir(0o700)
    (area / "state/pcopy" / os.fsdecode(HOSTILE[:200]) / "job").write_bytes(HOSTILE)
    assert_harmless_run(pcopy("--jobs", env=state), status=0, says=b"back")
    os.rename(source, source[:-3])
    for words in (("--resume",), ("--resume", other), ("--discard", HOSTILE)):
        assert_harmless_run(pcopy(*words, env=state), status=2, says=b"pcopy: ")


@pytest.mark.parametrize(
    "words",
    [
        (b"--" + HOSTILE, "a", "b"),
        (b"-" + HOSTILE, "a", "b"),
        (b"--existing=" + HOSTILE, "a", "b"),
        (b"--preserve=" + HOSTILE, "a", "b"),
        (b"--chown=" + HOSTILE, "a", "b"),
        (b"-n" + HOSTILE, "a", "b"),
        (b"--chunk-size", HOSTILE, "a", "b"),
        (b"--progress=" + HOSTILE, "a", "b"),
        (b"--verify=" + HOSTILE, "a", "b"),
        (HOSTILE,),
        (HOSTILE, "b"),
        ("/etc/passwd", b"/nowhere/" + HOSTILE),
        ("--resume", HOSTILE),
        ("--jobs", HOSTILE),
        ("--errors", b"/nowhere/" + HOSTILE, "/etc/passwd", "b"),
        ("--signature", HOSTILE + b"/", "a", "b"),
        ("--spool", HOSTILE, "a", "b"),
    ],
)
def test_invalid_arguments_are_escaped_in_messages(words: tuple[Argument, ...]) -> None:
    assert_harmless_run(pcopy(*words, cwd="/"), status=2, says=b"pcopy: ")


def test_environment_variables_are_escaped_in_messages() -> None:
    run = pcopy("/etc/passwd", "b", env={"PMI_SIZE": os.fsdecode(HOSTILE)})
    assert_harmless_run(run, status=2, says=b"PMI_SIZE=evil")


def test_hostile_name_is_escaped_in_the_warning_about_a_silent_rank(area: Path, source: bytes) -> None:
    for name in os.listdir(source)[1:]:
        os.unlink(os.path.join(source, name))
    impatient = [sys.executable, str(REPOSITORY / "tests/support/impatient.py"), "0.1,0.7,0.1,60"]
    wrap = [*slowed("utimensat", 2500), *impatient]
    run = assert_harmless_run(pcopy("-q", source, area / "copy", ranks=2, wrap=wrap), status=0)
    assert re.search(rb"has been silent .* of .*evil", run.stderr), show(run)


# Characters that the locale cannot represent


def in_locale(name: str) -> dict[str, str]:
    return {"LC_ALL": name, "PYTHONUTF8": "", "PYTHONIOENCODING": ""}


def test_output_in_the_c_locale_is_ascii(area: Path) -> None:
    source = area / "Größe日本"
    source.mkdir()
    (source / "ä").write_bytes(b"contents")
    (area / "copy/ä/full").mkdir(parents=True)
    for options in ((), PLAIN, ("--json",)):
        run = pcopy(*options, "-T", source, area / "copy", env=in_locale("C"), ranks=1)
        assert run.returncode == 1, show(run)
        assert run.stdout.isascii() and run.stderr.isascii(), show(run)
        assert rb"\xc3\xa4: " in run.stderr
    differing = pverify(source, area / "copy", env=in_locale("C"))
    assert (differing.returncode, differing.stdout) == (1, b"changed \\xc3\\xa4\nextra \\xc3\\xa4/full\n"), show(
        differing
    )
    named = pcopy("-T", source, area / "copy", ranks=1)
    assert "/ä: ".encode() in named.stderr


def test_progress_bar_in_the_c_locale_is_ascii(area: Path) -> None:
    source = area / "source"
    source.mkdir()
    for number in range(60):
        (source / f"ä{number}").write_bytes(b"contents")
    (area / "copy/source/ä1/full").mkdir(parents=True)
    options = ("--progress-interval", "0.001", "-n", "1", "-v", "--checkpoint", "none")
    line, environment = command(*options, source, area / "copy", env=in_locale("C"), wrap=slowed("utimensat", 2))
    for columns in ("80", "18"):
        leader, follower = pty.openpty()
        own = {**environment, "TERM": "xterm", "COLUMNS": columns}
        with subprocess.Popen(line, env=own, stdout=subprocess.DEVNULL, stderr=follower) as run:
            os.close(follower)
            output = b""
            try:
                while part := os.read(leader, 65536):
                    output += part
            except OSError:  # EIO: the last process has closed the terminal
                pass
        os.close(leader)
        assert run.returncode == 1
        assert output.isascii(), output
        assert rb"\xc3\xa41: " in output
        assert columns == "18" or b"---" in output  # the bar
