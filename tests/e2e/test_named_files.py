"""Options of all programs that name a file: only trusted links are followed (``pcopy.fsio.named_file``)."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from pcopy.cli.programs import PROGRAMS, load_program
from tests.support.command import REPOSITORY, pcopy, show
from tests.support.users import require_root

OTHER_USER = 65531

RUNS = {
    "pcopy": ("-T", "src", "dst"),
    "psync": ("src/", "dst"),
    "pverify": ("src", "same"),
    "prm": ("--yes", "src"),
    "pstripe": ("src",),
    "ptar": ("-cf", "a.tar", "src"),
    "pbcast": ("src/a", "dir"),
    "pdbench": ("dir",),
    "pwalk": ("src",),
    "pchmod": ("u+r", "src"),
}
"""A command line of each program; an option with a file is added to it."""

COMMON_OPTIONS = ("--errors", "--log", "--metrics", "--report", "--config", "--exclude-from")

SPECIAL_COMMANDS = {
    ("pcopy", "--files-from"): ("--files-from", "FILE", "-T", "src", "dst"),
    ("pverify", "--create"): ("--create", "FILE", "src"),
    ("pverify", "--manifest"): ("--manifest", "FILE", "src"),
    ("pverify", "--output"): ("--compare", "size", "--output", "common:FILE", "src", "same"),
    ("pverify", "SIGNATURE"): ("FILE", "src"),
    ("prm", "--files-from"): ("--yes", "--from", "FILE"),
    ("ptar", "--file"): ("-cf", "FILE", "src"),
    ("ptar", "-x --file"): ("-xf", "FILE", "-C", "dir"),
    ("ptar", "-t --file"): ("-tf", "FILE"),
    ("ptar", "--files-from"): ("-cf", "a.tar", "-T", "FILE"),
    ("pwalk", "--files-from"): ("--from", "FILE"),
    ("pchmod", "--files-from"): ("--from", "FILE", "u+r"),
    ("pchmod", "--reference"): ("--reference", "FILE", "src"),
    ("pchmod", "--acl-from"): ("--acl-from", "FILE", "src"),
}
"""Command lines of options that cannot be added to those of ``RUNS``; some name the file as an operand."""

OTHER_OPTIONS = {
    *(("pcopy", option) for option in ("--signature", "--manifest")),
    *(("psync", option) for option in ("--signature", "--manifest")),
    ("ptar", "--signature"),
    ("pdbench", "--svg"),
    ("pwalk", "--output"),
    ("pwalk", "--page"),
}

DIRECTORY_OPTIONS = {
    *(("pcopy", option) for option in ("--backup", "--resume", "--control", "--discard", "--checkpoint", "--spool")),
    *(("psync", option) for option in ("--backup", "--resume", "--control", "--discard", "--checkpoint", "--spool")),
    ("ptar", "--directory"),
}
"""Options that name a directory or a job and follow other rules (docs/operations/security.md)."""

NON_PATH_METAVARS = {
    *("N", "RATE", "HOW", "SECONDS", "SIZE", "LIST", "P", "WHEN", "WHAT", "USER:GROUP", "USER[:GROUP]", "GROUP"),
    *("TABLE", "MODE", "KEY", "FORMAT", "CLASS", "DIR|none", "WHICH"),
}
"""Metavariables in ``--help`` of options whose value is no path."""

ENDINGS = {"--report": ".json", "--svg": ".svg", "--page": ".html", "--output": ".lst", "--metrics": ".prom"}


class FileOption(NamedTuple):
    program: str
    option: str
    words: tuple[str, ...]

    def line(self, file: str) -> list[str]:
        return [word.replace("FILE", file) for word in self.words]

    @property
    def name(self) -> str:
        return f"file{ENDINGS.get(self.option, '')}"


def options_of(program: str) -> Iterator[tuple[str, str]]:
    """Yield the options that take a value, each with its metavariable in ``--help``."""
    parser = load_program(program).parser()
    for action in parser._actions:
        if action.nargs != 0:
            yield max(action.option_strings, key=len), str(action.metavar)


def table() -> Iterator[FileOption]:
    there = {(program, option) for program in PROGRAMS for option, _ in options_of(program)}
    for program, option in sorted(there):
        if (program, option) not in SPECIAL_COMMANDS and (
            option in COMMON_OPTIONS or (program, option) in OTHER_OPTIONS
        ):
            yield FileOption(program, option, (option, "FILE", *RUNS[program]))
    for (program, option), words in SPECIAL_COMMANDS.items():
        yield FileOption(program, option, words)


TABLE = {f"{each.program} {each.option}": each for each in table()}


def test_table_covers_every_path_option() -> None:
    """An option added later needs a row here or a metavariable that is no path."""
    unknown = [
        f"{program} {option} {value}"
        for program in PROGRAMS
        for option, value in options_of(program)
        if value not in NON_PATH_METAVARS
        and f"{program} {option}" not in TABLE
        and (program, option) not in DIRECTORY_OPTIONS
    ]
    assert unknown == []


@pytest.fixture
def place(area: Path) -> Path:
    os.chmod(area, 0o777)
    for name in ("src", "same", "dir"):
        (area / name).mkdir()
    for name in ("src/a", "same/a"):
        (area / name).write_text("a")
    (area / "real").mkdir()
    os.symlink("real", area / "link")
    return area


@pytest.mark.parametrize("row", TABLE)
def test_link_of_another_user_is_not_followed(place: Path, row: str) -> None:
    require_root("make a link of another user")
    os.chown(place / "link", OTHER_USER, -1, follow_symlinks=False)
    named = TABLE[row]
    # Output files do not exist yet. Input files need no valid contents: opening them is refused first.
    if row in ("pverify SIGNATURE", "pverify --manifest"):
        (place / "real" / named.name).write_text("format: pcopy-signature\n" if "SIG" in row else "#pcopy-manifest 1\n")
    if named.option == "--config":
        (place / "real" / named.name).write_text("quiet: true\n")
    run = pcopy(*named.line(f"link/{named.name}"), program=named.program, cwd=place)
    assert run.returncode == 2, show(run)
    if named.option == "--config":  # root reads it only from directories that only root can write
        assert b"root reads only a configuration that no other user can change" in run.stderr
        return
    if named.program == "pstripe" and b"is not on Lustre" in run.stderr:  # is checked first
        assert not (place / "real" / named.name).exists()
        return
    assert b"belongs to user 65531 and is not followed" in run.stderr and run.stderr.count(b"\n") == 1, show(run)
    assert b"only links of root and of the user who runs the program" in run.stderr, show(run)
    assert run.stderr.count(b"; name ") == 1, show(run)
    assert b"link to real" in run.stderr and b"Traceback" not in run.stderr, show(run)
    assert (place / "src/a").exists() and not (place / "dst").exists()


QUICK = {"pdbench": ("--time", "0.01", "--files", "1", "--size", "64K", "--tests", "create", "-n", "1")}
"""Options that make a run of a program short."""

EXCEPT_CONFIG = [row for row in TABLE if not row.endswith(" --config")]
"""Root reads a configuration file only from directories that only root can write: tests/cli/test_configuration.py."""


def _reset(place: Path, named: FileOption) -> None:
    """Create ``real`` and all items that a run changes, with an archive or a list if the row reads one."""
    for path in ("dst", "real", "src", "same", "dir", "a.tar"):
        subprocess.run(["rm", "-rf", place / path], check=True)
    for name in ("src", "same", "dir", "real"):
        (place / name).mkdir()
    for name in ("src/a", "same/a"):
        (place / name).write_text("a")
        os.utime(place / name, ns=(10**18, 10**18))
    file = place / "real" / named.name
    if named.option in ("-x --file", "-t --file"):
        subprocess.run(["tar", "-cf", file, "-C", place, "src"], check=True)
    elif named.option in ("--from", "--files-from"):
        file.write_text("a\n" if named.program == "pcopy" else "src/a\n")
    elif named.option == "--exclude-from":
        file.write_text("b\n")
    elif named.option in ("--reference", "--acl-from"):
        file.touch()


def _outcome(place: Path, named: FileOption, path: str, *words: str) -> tuple[int, set[str], int]:
    """Run the program with its file at ``path``. Return the status, the existing paths and the count of errors."""
    run = pcopy(*words, *QUICK.get(named.program, ()), *named.line(path), program=named.program, cwd=place)
    assert run.returncode in (0, 1, 2) and b"Traceback" not in run.stderr, show(run)
    assert b"is not followed" not in run.stderr, show(run)
    there = {str(each.relative_to(place)) for each in place.rglob("*") if each.name not in ("link", "own", "last")}
    return run.returncode, there, run.stderr.count(path.encode())


@pytest.mark.parametrize("row", EXCEPT_CONFIG)
@pytest.mark.parametrize("case", ["directory", "stranger's, insecure"])
def test_followed_link_has_the_outcome_of_the_direct_path(place: Path, row: str, case: str) -> None:
    """The link belongs to the caller or, with --insecure-links, to another user."""
    named = TABLE[row]
    words: tuple[str, ...] = ()
    if case != "directory":
        require_root("make a link of another user")
        os.chown(place / "link", OTHER_USER, -1, follow_symlinks=False)
        words = ("--insecure-links",)
    assert os.lstat(place / "link").st_uid == (OTHER_USER if words else os.geteuid())
    _reset(place, named)
    wanted = _outcome(place, named, f"real/{named.name}")
    _reset(place, named)
    assert _outcome(place, named, f"link/{named.name}", *words) == wanted


READ_OR_WRITTEN_THROUGH = [
    row
    for row in EXCEPT_CONFIG
    if TABLE[row].option
    in ("--errors", "--log", "--exclude-from", "--from", "--files-from", "--reference", "--acl-from")
    or row in ("ptar -x --file", "ptar -t --file")
]
"""Files that are not replaced as a whole: a link as the last component is followed, too."""


@pytest.mark.parametrize("row", READ_OR_WRITTEN_THROUGH)
def test_callers_link_as_last_component_is_followed(place: Path, row: str) -> None:
    named = TABLE[row]
    os.symlink(f"real/{named.name}", place / "last")
    _reset(place, named)
    wanted = _outcome(place, named, f"real/{named.name}")
    _reset(place, named)
    assert _outcome(place, named, "last") == wanted


@pytest.mark.parametrize("row", EXCEPT_CONFIG)
def test_link_of_another_user_as_last_component_is_not_followed(place: Path, row: str) -> None:
    require_root("make a link of another user")
    named = TABLE[row]
    if named.program == "pstripe" and row not in READ_OR_WRITTEN_THROUGH:
        return  # it first refuses a file system without layouts
    _reset(place, named)
    link = f"last{ENDINGS.get(named.option, '')}"
    os.symlink(f"real/{named.name}", place / link)
    os.chown(place / link, OTHER_USER, -1, follow_symlinks=False)
    before = {path: path.read_bytes() for path in (place / "real").iterdir()}
    run = pcopy(*QUICK.get(named.program, ()), *named.line(link), program=named.program, cwd=place)
    assert run.returncode == 2 and b"Traceback" not in run.stderr, show(run)
    assert b"link" in run.stderr.replace(link.encode(), b"") or b"is not on Lustre" in run.stderr, show(run)
    assert {path: path.read_bytes() for path in (place / "real").iterdir()} == before
    assert os.path.islink(place / link) and (place / "src/a").exists() and not (place / "dst").exists()


APPENDED = [row for row in TABLE if row.split()[1] in ("--errors", "--log") and "pstripe" not in row]
"""pstripe first refuses a file system without layouts; the same functions add and open its options."""
REPLACED = [
    row for row in TABLE
    if (row.split()[1] in ("--metrics", "--report", "--signature", "--svg", "--page", "--output", "--create")
        or row in ("pcopy --manifest", "psync --manifest", "ptar --file"))
    and "pstripe" not in row
]  # fmt: skip


@pytest.mark.parametrize("row", APPENDED)
def test_file_of_another_user_is_not_written(place: Path, row: str) -> None:
    require_root("make a file of another user")
    named = TABLE[row]
    file = place / named.name
    file.touch()
    os.chmod(file, 0o666)
    os.chown(file, OTHER_USER, -1)
    run = pcopy(*named.line(named.name), program=named.program, cwd=place)
    assert run.returncode == 2 and b"belongs to user 65531" in run.stderr, show(run)
    assert file.read_bytes() == b"" and (place / "src/a").exists()


@pytest.mark.parametrize("row", [row for row in APPENDED if row.endswith(" --log")])
def test_refused_job_leaves_no_errors_file(place: Path, row: str) -> None:
    """The log is a device without a driver: opening it fails after the errors file was created."""
    require_root("make a device")
    named = TABLE[row]
    os.mknod(place / "device", 0o644 | stat.S_IFCHR, os.makedev(60, 250))
    line = ["--errors", "new.err", *named.line("device")]
    run = pcopy(*line, program=named.program, cwd=place)
    assert run.returncode == 2 and b"device: cannot write the log: " in run.stderr, show(run)
    assert b"FIFO" not in run.stderr and not (place / "new.err").exists(), show(run)
    (place / "new.err").touch()  # an existing file is kept
    assert pcopy(*line, program=named.program, cwd=place).returncode == 2 and (place / "new.err").exists()


@pytest.mark.parametrize("row", [row for row in APPENDED if row.endswith(" --log")])
def test_log_lines_are_appended_to_an_append_only_file(place: Path, row: str) -> None:
    require_root("set an attribute of a file")
    named = TABLE[row]
    if subprocess.run(["chattr", "+a", place / "src/a"], check=False, capture_output=True).returncode:
        pytest.skip("chattr: not for files of this file system")
    subprocess.run(["chattr", "-a", place / "src/a"], check=True)
    old = b'{"action": "old"}\n'
    (place / named.name).write_bytes(old)
    subprocess.run(["chattr", "+a", place / named.name], check=True)
    try:
        run = pcopy(*QUICK.get(named.program, ()), *named.line(named.name), program=named.program, cwd=place)
        assert run.returncode == 0 and run.stderr.count(b"EPERM") == 0, show(run)
        assert (place / named.name).read_bytes().startswith(old)
    finally:
        subprocess.run(["chattr", "-a", place / named.name], check=True)


@pytest.mark.parametrize("row", REPLACED)
def test_fifo_is_not_replaced(place: Path, row: str) -> None:
    named = TABLE[row]
    os.mkfifo(place / named.name)
    run = pcopy(*named.line(named.name), program=named.program, cwd=place)
    assert run.returncode == 2 and b"is not a regular file" in run.stderr, show(run)
    assert (place / named.name).is_fifo()


@pytest.mark.parametrize("file", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
@pytest.mark.parametrize("row", REPLACED)
def test_standard_stream_is_not_replaced(place: Path, row: str, file: str) -> None:
    """An option that requires an extension first refuses the name."""
    named = TABLE[row]
    run = pcopy(*named.line(file), program=named.program, cwd=place)
    assert run.returncode == 2 and b"symbolic link" not in run.stderr and b"Traceback" not in run.stderr, show(run)
    if named.option not in ENDINGS or named.option == "--metrics" or row == "pverify --output":
        assert f"{file}: is not a regular file, and cannot be replaced by a".encode() in run.stderr, show(run)
        assert run.stderr.endswith(b"; name a regular file\n"), show(run)


@pytest.mark.parametrize("row", APPENDED)
@pytest.mark.parametrize("number", ["x", "99", "99999999999"])
def test_invalid_descriptor_path_is_reported(place: Path, row: str, number: str) -> None:
    named = TABLE[row]
    run = pcopy(*named.line(f"/proc/self/fd/{number}"), program=named.program, cwd=place)
    assert run.returncode == 2 and not (place / "dst").exists(), show(run)
    assert b"Bad file descriptor" in run.stderr or b"No such file or directory" in run.stderr, show(run)


@pytest.mark.parametrize(
    "row", [row for row in TABLE if row.split()[1] in ("--reference", "--acl-from", "--exclude-from")]
)
def test_message_about_a_missing_file_has_at_most_one_hint(place: Path, row: str) -> None:
    named = TABLE[row]
    run = pcopy(*named.line("missing/file"), program=named.program, cwd=place)
    assert run.returncode == 2 and b"No such file or directory" in run.stderr, show(run)
    assert b"--help" not in run.stderr and run.stderr.count(b"; ") <= 1, show(run)


LINE = f"{sys.executable} {REPOSITORY}/bin"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("pcopy -q -T --log /dev/stdout src dst", '{"action"'),
        ("pcopy -q -T --log >(cat > got; echo > done) src dst; until [ -e done ]; do sleep 0.02; done; cat got",
         '{"action"'),
        ("pcopy -q -T --log /dev/stdout src dst > got; cat got", '{"action"'),
        ("pcopy -q -T --files-from <(echo a) src dst; ls dst", "a\n"),
        ("pcopy -q -T --exclude-from /dev/stdin src dst <<< b; ls dst", "a\n"),
        ("pcopy -q -T --config set.yaml --exclude-from <(echo b) src dst; ls dst", "a\n"),
        ("pwalk -q --from <(echo src/a)", "src/a\n"),
        ("pcopy -q -T --config set.yaml --exclude-from /dev/stdin src dst < only_b; ls dst", "a\n"),
        ("pwalk -q --from /dev/stdin < listed", "src/a\n"),
        ("pwalk -q --from /dev/fd/7 7< listed", "src/a\n"),
        ("pverify -q --create sig --manifest man src;"
         " BIN/pverify -q --manifest /dev/stdin src < man; echo $?", "0\n"),
        ("ptar -q -cf a.tar src; BIN/ptar -tf /dev/fd/7 7>> a.tar 2>&1",
         "ptar: /dev/fd/7: cannot be opened: descriptor 7 is not open for reading\n"),
        ("prm -q --yes --from - <<< src/b; ls src", "a\n"),
        ("pcopy -q -T --config set.yaml --exclude-from /dev/fd/7 src dst 7< only_b; ls dst", "a\n"),
        ("pverify -q --create sig src; BIN/pverify -q /dev/stdin src < sig; echo $?", "0\n"),
        ("ptar -q -cf a.tar src; ln -s a.tar own.tar; BIN/ptar -tf own.tar", "src/\nsrc/a\nsrc/b\n"),
    ],
    ids=lambda value: value.split(";")[0] if " " in value else "",
)  # fmt: skip
def test_files_opened_by_the_shell_are_accepted(place: Path, line: str, expected: str) -> None:
    (place / "src/b").write_text("b")
    (place / "set.yaml").write_text("ranks: 2\n")
    (place / "only_b").write_text("b\n")
    (place / "listed").write_text("src/a\n")
    os.chmod(place, 0o755)  # root reads no configuration from directories that others can write
    command = f"{LINE}/{line.replace('BIN', LINE)}"
    run = subprocess.run(["bash", "-c", command], check=False, cwd=place, capture_output=True, text=True, timeout=60)
    assert run.stdout.startswith(expected) and run.stderr == "", run
    assert "b\n" not in run.stdout or "b\n" in expected, run


@pytest.mark.parametrize("file", ["-", "/dev/stdin", "/dev/fd/0"])
@pytest.mark.parametrize(
    "line", ["prm --yes --from", "pwalk --from", "pcopy -T src dst --exclude-from", "pcopy -T src dst --files-from"]
)
def test_closed_standard_input_is_not_read_as_an_empty_list(place: Path, line: str, file: str) -> None:
    command = f"{LINE}/{line} {file} <&-"
    run = subprocess.run(["bash", "-c", command], check=False, cwd=place, capture_output=True, timeout=60)
    assert run.returncode == 2 and b"descriptor 0 is not open for reading" in run.stderr, run
    assert not (place / "dst").exists()


def test_closed_standard_input_does_not_confirm_a_removal(place: Path) -> None:
    run = subprocess.run(["bash", "-c", f"{LINE}/prm src <&-"], check=False, cwd=place, capture_output=True, timeout=60)
    assert run.returncode == 2 and b"cannot ask for confirmation" in run.stderr and (place / "src/a").exists(), run


def test_socket_works_as_standard_input_and_output(place: Path) -> None:
    (place / "src/b").write_text("b")
    line = [sys.executable, f"{REPOSITORY}/bin/pcopy", "-q", "-T", "--log", "/dev/stdout"]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"b\n")
        ours.shutdown(socket.SHUT_WR)
        words, stream = [*line, "--exclude-from", "/dev/stdin", "src", "dst"], theirs.fileno()
        run = subprocess.run(
            words, check=False, stdin=stream, stdout=stream, stderr=subprocess.PIPE, cwd=place, timeout=60
        )
        assert run.returncode == 0 and run.stderr == b"", run
        assert ours.recv(1 << 16).startswith(b'{"action"') and os.listdir(place / "dst") == ["a"]


def test_list_in_a_fifo_is_waited_for(place: Path) -> None:
    """Reading the list before it is written would give an empty list."""
    os.mkfifo(place / "list")

    def write() -> None:
        time.sleep(0.5)
        (place / "list").write_text("a\n")

    writing = threading.Thread(target=write)
    writing.start()
    run = pcopy("-T", "--files-from", "list", "src", "dst", cwd=place)
    writing.join()
    assert run.returncode == 0 and (place / "dst/a").exists(), show(run)


FROM_FIFO = {
    "pcopy --files-from": ("pcopy", "-T", "--files-from", "list", "src", "dst"),
    "pcopy --exclude-from": ("pcopy", "-T", "--exclude-from", "list", "src", "dst"),
    "pwalk --from": ("pwalk", "--from", "list"),
    "prm --from": ("prm", "--yes", "--from", "list"),
    "pchmod --from": ("pchmod", "--from", "list", "u+r"),
    "ptar -T": ("ptar", "-cf", "dst", "-T", "list"),
}


@pytest.mark.parametrize("signal", ["INT", "TERM"])
@pytest.mark.parametrize("row", FROM_FIFO)
def test_wait_for_the_writer_of_a_fifo_is_reported_and_ends_on_a_signal(place: Path, row: str, signal: str) -> None:
    os.mkfifo(place / "list")
    program, *words = FROM_FIFO[row]
    wrap = ("timeout", "-s", signal, "-k", "5", "6")
    run = pcopy(*words, program=program, cwd=place, wrap=wrap, real=True)
    assert run.returncode == 124 and not (place / "dst").exists(), show(run)
    assert run.stderr.startswith(f"{program}: waiting for a program to write to the FIFO ".encode()), show(run)
    assert run.stderr.count(b"list (Ctrl-C ends this)\n") == 1, show(run)
