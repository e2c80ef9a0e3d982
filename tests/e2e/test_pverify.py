"""``pverify``: the three results (same, different, error) and the list of differences."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import Argument, Completed, pverify, show, succeed
from tests.support.damages import flip, make_tree
from tests.support.faults import READS, Fault
from tests.support.files import noise
from tests.support.held import held
from tests.support.oracle import changes, snapshot
from tests.support.processes import wait_until
from tests.support.signatures import VECTORS, expected, reported, signed
from tests.support.traces import READING, Trace
from tests.support.trees import random_tree
from tests.support.users import NOBODY, is_root, require_root

MIB = 1 << 20


@pytest.fixture(scope="module")
def place(session_scratch: Path) -> Path:
    """Return a directory with equal trees ``a`` and ``b``, another tree ``c``, and signature and manifest of ``a``."""
    path = session_scratch / "pverify"
    path.mkdir()
    random_tree(path / "a", 31, files=60, directories=10, largest=9 * MIB, privileged=is_root())
    subprocess.run(["cp", "-a", path / "a", path / "b"], check=True)
    make_tree(path / "c")
    succeed("--signature", path / "sig", "--manifest", path / "manifest", path / "a", path / "copy", ranks=2)
    return path


def ways_to_verify(place: Path, tree: Path) -> list[tuple[Argument, ...]]:
    """Return the arguments of the three ways to verify ``tree``."""
    return [(place / "sig", tree), ("--manifest", place / "manifest", tree), (place / "a", tree)]


@pytest.mark.in_turn(2)
@pytest.mark.parametrize(("ranks", "launcher"), [(1, None), (2, None), (5, None), (3, "mpi")])
def test_equal_trees_are_reported_as_the_same(place: Path, ranks: int, launcher: str | None) -> None:
    before = snapshot(place / "a"), snapshot(place / "b")
    for words in ways_to_verify(place, place / "b"):
        run = pverify("-q", *words, ranks=ranks, launcher=launcher)
        assert (run.returncode, run.stdout, run.stderr) == (0, b"", b""), show(run)
    assert changes(before[0], snapshot(place / "a")) == changes(before[1], snapshot(place / "b")) == []


@pytest.mark.parametrize("ranks", [1, 5])
def test_different_trees_are_listed_as_missing_and_extra(place: Path, ranks: int) -> None:
    """The list is in tree order."""
    wanted = sorted([*paths(place / "a", b"missing"), *paths(place / "c", b"extra")], key=lambda line: line[0])
    for words in ways_to_verify(place, place / "c")[1:]:
        run = pverify("-q", *words, ranks=ranks)
        assert (run.returncode, run.stderr) == (1, b""), show(run)
        assert [line.partition(" ")[0].encode() for line in reported(run)] == [what for _, what in wanted]
        assert [line.partition(" ")[2] for line in reported(run)] == [escaped(key) for key, _ in wanted]


def paths(top: Path, what: bytes) -> list[tuple[bytes, bytes]]:
    """Return a sort key for each item below ``top`` except sockets, paired with ``what``."""
    found = [path for path in top.rglob("*") if not path.is_socket() or path.is_symlink()]
    return [(os.fsencode(path.relative_to(top)).replace(b"/", b"\0"), what) for path in found]


def escaped(key: bytes) -> str:
    text = key.replace(b"\0", b"/").decode("utf-8", "backslashreplace").replace("\\", "\\\\")
    text = re.sub(r"\\\\(x[0-9a-f]{2})", r"\\\1", text)
    return text.replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def test_messages_give_signatures_and_counts(place: Path) -> None:
    run = pverify(place / "sig", place / "b")
    assert run.stdout == b""
    assert run.stderr.startswith(b"pverify: the same\n"), show(run)
    assert f"signature {signed(place / 'sig')} (xxh3-128)".encode() in run.stderr
    run = pverify(place / "sig", place / "c")
    lines = run.stderr.decode().splitlines()
    assert lines[:3] == [
        "pverify: different",
        f"pverify: expected signature {signed(place / 'sig')}",
        f"pverify: signature {expected(place / 'c')} (xxh3-128)",
    ]
    run = pverify(place / "c", place / "a")
    assert re.search(rb"^pverify: different: \d+ missing, \d+ extra$", run.stderr, re.MULTILINE), show(run)


def json_lines(run: Completed) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.decode().splitlines()]


def test_json_lines_and_summary_describe_the_differences(place: Path, area: Path) -> None:
    subprocess.run(["cp", "-a", place / "c", area / "d"], check=True)
    (area / "d/small").unlink()
    (area / "d/\n").touch()
    flip(area / "d/large", 0)
    *lines, summary = json_lines(run := pverify("-q", "--json", place / "c", area / "d", ranks=2))
    assert run.returncode == 1 and run.stderr == b"", show(run)
    assert lines == [
        {"difference": what, "path": path, "path_b64": base64.b64encode(exact).decode()}
        for what, path, exact in (
            ("extra", "\\n", b"\n"),
            ("changed", "large", b"large"),
            ("missing", "small", b"small"),
        )
    ]
    wanted = {"same": False, "changed": 1, "missing": 1, "extra": 1, "failed": 0, "exit_status": 1, "ranks": 2}
    assert {key: summary[key] for key in wanted} == wanted
    (summary,) = json_lines(run := pverify("-q", "--json", place / "sig", place / "b"))
    assert (run.returncode, summary["same"], summary["signature"]) == (0, True, signed(place / "sig"))
    (summary,) = json_lines(run := pverify("-q", "--json", place / "sig", place / "c"))
    assert (run.returncode, summary["same"], summary["expected"]) == (1, False, signed(place / "sig"))
    assert summary["signature"] == expected(place / "c")
    (summary,) = json_lines(run := pverify("-q", "--json", "--create", area / "sig", place / "c"))
    assert (run.returncode, summary["same"], summary["signature"]) == (0, None, signed(area / "sig"))


def test_directory_equals_itself_through_a_link(area: Path) -> None:
    """Forked ranks share open directories: a rank must not consume the names that another one is reading."""
    (area / "source").mkdir()
    for number in range(20_000):
        (area / f"source/a-name-of-some-length-{number}").touch()
    (area / "link").symlink_to("source")
    for ranks in (2, 5):
        run = pverify("-q", area / "source", area / "link", ranks=ranks)
        assert (run.returncode, run.stdout) == (0, b""), show(run)


def test_pairs_of_files_and_directories_are_compared(area: Path) -> None:
    (area / "one").write_bytes(b"1" * 5 * MIB)
    (area / "same").write_bytes(b"1" * 5 * MIB)
    (area / "other").write_bytes(b"1" * 5 * MIB + b"2")
    (area / "link").symlink_to("one")
    for name in ("empty", "hollow"):
        (area / name).mkdir()
    (area / "full").mkdir()
    (area / "full/file").touch()
    (area / "way").symlink_to("full")
    os.mkfifo(area / "pipe")
    wanted: list[tuple[str, str, int, list[str]]] = [
        ("one", "same", 0, []),
        ("one", "link", 0, []),
        ("one", "other", 1, ["changed ."]),
        ("one", "pipe", 1, ["changed ."]),
        ("pipe", "one", 1, ["changed ."]),
        ("empty", "hollow", 0, []),
        ("empty", "full", 1, ["extra file"]),
        ("full", "empty", 1, ["missing file"]),
        ("full", "way", 0, []),
        ("way/", "full/.", 0, []),
    ]
    for one, other, status, lines in wanted:
        run = pverify("-q", f"{area}/{one}", f"{area}/{other}", ranks=2)
        assert (run.returncode, reported(run), run.stderr) == (status, lines, b""), (one, other, show(run))
    for one in ("full", "empty"):
        run = pverify("-q", area / one, area / "one", ranks=2)
        line = f"pverify: {area}/{one} is a directory, and {area}/one is a file; {PAIR_ADVICE}\n"
        assert (run.returncode, run.stdout, run.stderr.decode()) == (2, b"", line), show(run)


def test_second_of_two_signatures_is_an_ordinary_file(place: Path, area: Path) -> None:
    (area / "file").write_bytes((place / "sig").read_bytes())
    run = pverify("--create", area / "sig", area / "file")
    assert run.returncode == 0, show(run)
    assert pverify("-q", area / "sig", area / "file").returncode == 0
    assert pverify("-q", place / "sig", area / "file").returncode == 1


PAIR_ADVICE = "name two directories, two files, or a signature (or --manifest MANIFEST) and what is compared with it"

Corruption = tuple[Callable[[bytes], bytes], str]

SIGNATURES: dict[str, Corruption] = {
    "empty": (lambda data: b"", "is not a mapping"),
    "truncated": (lambda data: data[: data.index(b"signature: ")], "lacks the key"),
    "torn": (lambda data: re.sub(rb'(signature: "?\w{20})\w+', rb"\1", data), "32 hexadecimal digits"),
    "binary": (lambda data: bytes(range(256)), "is not UTF-8"),
    "other-format": (lambda data: data.replace(b"pcopy-signature", b"pcopy-whatever"), "format is not"),
    "newer": (lambda data: data.replace(b"version: 1", b"version: 2"), "use a newer pcopy"),
    "other-algorithm": (lambda data: data.replace(b"xxh3-128", b"xxh3-64"), "algorithm is none of"),
    "odd-block-size": (lambda data: data.replace(b"4194304", b"4194305"), "block_size"),
    "manifest": (lambda data: b"#pcopy-manifest 1 xxh3-128 4194304\n", "compare with it by pverify --manifest "),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_invalid_signatures_are_refused(place: Path, area: Path, name: str) -> None:
    corrupt, reason = SIGNATURES[name]
    (area / "sig").write_bytes(corrupt((place / "sig").read_bytes()))
    assert_error(pverify(area / "sig", place / "c", ranks=2), reason)


@pytest.mark.parametrize("key", ["files", "directories", "symlinks", "special", "bytes"])
def test_signature_with_inconsistent_counts_is_damaged(place: Path, area: Path, key: str) -> None:
    """The digest is correct, so that one of the other fields must be wrong."""
    before = (place / "sig").read_text()
    text = re.sub(rf"^{key}: (\d+)$", lambda found: f"{key}: {int(found[1]) + 1}", before, flags=re.MULTILINE)
    assert text != before
    (area / "sig").write_text(text)
    assert_error(pverify("-q", area / "sig", place / "b", ranks=2), f"{area}/sig: is damaged")
    run = pverify("-q", "--json", area / "sig", place / "b", ranks=2)
    (summary,) = json_lines(run)
    assert (run.returncode, summary["same"], summary["exit_status"]) == (2, None, 2), show(run)
    assert pverify("-q", area / "sig", place / "c", ranks=2).returncode == 1


MANIFESTS: dict[str, Corruption] = {
    "empty": (lambda data: b"", "does not begin with"),
    "first-line-only": (lambda data: data[: data.index(b"\n") + 1], "is truncated"),
    "cut-at-a-line": (lambda data: data[: data.rindex(b"\n", 0, -1) + 1], "is damaged or truncated"),
    "cut-in-a-line": (lambda data: data[:-3], "is truncated"),
    "digest-changed": (lambda data: data[:-40] + data[-40:].replace(b"0", b"1").replace(b"a", b"b"), "damaged"),
    "newer": (lambda data: data.replace(b"manifest 1 ", b"manifest 2 "), "use a newer pcopy"),
    "signature": (lambda data: b"format: pcopy-signature\nversion: 1\n", "is a signature; compare with it by"),
    "binary": (lambda data: bytes(range(256)) * 99, "as a manifest: "),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_invalid_manifests_are_refused(place: Path, area: Path, name: str) -> None:
    corrupt, reason = MANIFESTS[name]
    (area / "manifest").write_bytes(corrupt((place / "manifest").read_bytes()))
    assert_error(pverify("--progress", "none", "--manifest", area / "manifest", place / "c", ranks=2), reason)


def assert_error(run: Completed, reason: str) -> None:
    """Check for status 2 and a single line on standard error that contains ``reason``."""
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert run.stderr.startswith(b"pverify: ") and run.stderr.count(b"\n") == 1, show(run)
    assert reason.encode() in run.stderr, show(run)


def test_invalid_pverify_arguments_are_refused(place: Path, area: Path) -> None:
    os.mkfifo(area / "pipe")
    wanted: list[tuple[tuple[Argument, ...], str]] = [
        ((), "0 paths given"),
        ((place / "a",), "1 path given"),
        ((place / "a", place / "b", place / "c"), "3 paths given"),
        (("--create", area / "new", place / "a", place / "b"), "2 paths given"),
        (("--manifest", place / "manifest"), "0 paths given"),
        (("--manifest", "", place / "a"), "--manifest: the empty string"),
        ((place / "a", ""), "a path is the empty string"),
        (("", place / "a"), "a path is the empty string"),
        ((place / "nowhere", place / "a"), "nowhere: No such file or directory"),
        ((place / "a", place / "nowhere"), "nowhere: No such file or directory"),
        ((place / "sig", place / "nowhere"), "nowhere: No such file or directory"),
        (("--create", area / "new", place / "nowhere"), "nowhere: No such file or directory"),
        (("--manifest", place / "nowhere", place / "a"), "as a manifest: "),
        (("--manifest", place / "a", place / "a"), "Is a directory"),
        (("--manifest", area / "pipe", place / "a"), "is not a regular file"),
        (("--hash", "blake3", place / "sig", place / "a"), "was made with xxh3-128; leave the option out"),
        (("--block-size", "64K", place / "sig", place / "a"), "was made with 4194304; leave the option out"),
        (("--block-size", "64K", "--manifest", place / "manifest", place / "a"), "was made with 4194304"),
        (("--block-size", "100K", place / "a", place / "b"), "not a power of two"),
        (("--hash", "none", place / "a", place / "b"), "none: not one of xxh3-128, blake3"),
        (("--signature", area / "new", place / "a"), "write --create SIGNATURE to make one"),
    ]
    for words, reason in wanted:
        assert_error(pverify(*words), reason)
    assert list(area.iterdir()) == [area / "pipe"]
    agreeing = ("--hash", "xxh3-128", "--block-size", "4M")
    assert pverify(*agreeing, place / "sig", place / "a").returncode == 0


@pytest.mark.parametrize("size", [100, 9 * MIB])
def test_unreadable_file_is_an_error_and_no_difference(area: Path, size: int) -> None:
    """Another difference is not reported either, since the tree was not read completely."""
    for name in ("a", "b"):
        VECTORS["inner"].make(area / name)
        (area / name / "bad").write_bytes(bytes(size))
    assert pverify("--create", area / "sig", "--manifest", area / "manifest", area / "a").returncode == 0
    (area / "b/new").touch()
    old = (area / "sig").read_bytes(), (area / "manifest").read_bytes()
    for words in (
        *ways_to_verify(area, area / "b"),
        ("--force", "--create", area / "sig", "--manifest", area / "manifest", area / "b"),
    ):
        fault = Fault(area / "trace", READS, area / "b/bad", "EREMOTEIO")
        run = pverify("-q", *words, ranks=2, wrap=fault.wrap())
        fault.check()
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        assert f"pverify: {area}/b/bad: read: Remote I/O error (EREMOTEIO)\n".encode() in run.stderr, show(run)
        assert b"could not be read: the result is unknown\n" in run.stderr
    assert ((area / "sig").read_bytes(), (area / "manifest").read_bytes()) == old


def test_missing_read_permission_is_an_error(area: Path) -> None:
    require_root("become somebody else")
    for name in ("a", "b"):
        VECTORS["outer"].make(area / name)
    (area / "b/a.txt").chmod(0o000)
    (area / "b/sub").chmod(0o711)
    run = pverify("-q", "--json", area / "a", area / "b", user=NOBODY, ranks=2)
    (summary,) = json_lines(run)
    assert (run.returncode, summary["same"], summary["failed"]) == (2, None, 2), show(run)
    assert f"pverify: {area}/b/a.txt: open: Permission denied (EACCES)\n".encode() in run.stderr
    assert f"pverify: {area}/b/sub: open: Permission denied (EACCES)\n".encode() in run.stderr


def test_file_that_changes_while_it_is_read_is_read_again(area: Path) -> None:
    for name in ("a", "b"):
        (area / name).mkdir()
        (area / name / "file").write_bytes(b"1" * 5 * MIB)
    with held(
        area / "log", "-q", area / "a", area / "b", calls=READS, path=area / "b/file", program="pverify", ranks=2
    ) as run:
        flip(area / "b/file", -1)
        ended = run.go_on()
    assert (ended.returncode, ended.stdout) == (1, b"changed file\n"), show(ended)


def test_killed_rank_is_reported(area: Path) -> None:
    (area / "a").mkdir()
    (area / "a/file").write_bytes(bytes(5 * MIB))
    words = ("-q", area / "a", area / "a")
    with held(area / "log", *words, calls=READS, path=area / "a/file", program="pverify", ranks=2) as run:
        os.kill(run.run.ranks()[-1], signal.SIGKILL)
        ended = run.go_on()
    assert ended.returncode == 70, show(ended)
    assert ended.stderr.startswith(b"pverify: rank 1 is gone: killed by SIGKILL"), show(ended)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_leaves_no_signature_or_manifest(area: Path, number: signal.Signals) -> None:
    (area / "a").mkdir()
    (area / "a/file").write_bytes(noise(20 * MIB))
    words = ("-q", "--create", area / "out" / "sig", "--manifest", area / "out" / "manifest", area / "a")
    (area / "out").mkdir()
    with held(area / "log", *words, calls=READS, path=area / "a/file", program="pverify", ranks=2) as run:
        run.run.send_signal(number)
        ended = run.go_on()
        assert wait_until(lambda: not run.run.processes(), 60)
    assert ended.returncode == 128 + number, show(ended)
    assert b"pverify: stopped by " in ended.stderr
    assert list((area / "out").iterdir()) == []


def test_options_drop_cache_and_direct_bypass_the_page_cache(filesystem: Path, area: Path) -> None:
    for name in ("a", "b"):
        (filesystem / name).mkdir()
        (filesystem / name / "small").write_bytes(b"small")
        (filesystem / name / "large").write_bytes(bytes(9 * MIB + 1))
    trace = Trace(area / "trace", "openat", "fadvise64", *READING)
    assert pverify("--drop-cache", filesystem / "a", filesystem / "b", ranks=2, wrap=trace.wrap()).returncode == 0
    for path in (filesystem / "a/small", filesystem / "b/large"):
        calls = [call for calls in trace.on(path) for call in calls]
        assert sum(call.startswith("fadvise64(") and "POSIX_FADV_DONTNEED) = 0" in call for call in calls) >= 1
    flip(filesystem / "b/large", -1)
    trace = Trace(area / "direct", "fcntl", *READING)
    run = pverify("-q", "--direct", filesystem / "a", filesystem / "b", ranks=2, wrap=trace.wrap())
    assert (run.returncode, run.stdout) == (1, b"changed large\n"), show(run)
    for path in (filesystem / "a/small", filesystem / "b/large"):
        calls = [call for calls in trace.on(path) for call in calls]
        assert any(re.search(r"^fcntl\(.*F_SETFL.*\|O_DIRECT\b", call) for call in calls)
        assert trace.moved(path, READING) == path.stat().st_size


def test_closed_pipe_ends_pverify_without_a_traceback(place: Path) -> None:
    """``pverify A B | head`` ends quietly, as with cmp and diff."""
    line = 'set -o pipefail; "$@" | head -n 1'
    done = pverify("-q", place / "a", place / "c", wrap=("bash", "-c", line, "bash"))
    assert len(done.stdout.splitlines()) == 1
    assert b"Traceback" not in done.stderr, show(done)
