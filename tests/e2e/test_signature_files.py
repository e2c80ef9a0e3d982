"""Files of `--signature` and `--manifest`: allowed paths, none after a failure, and warnings."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from tests.support.command import Argument, Completed, pcopy, pverify, show, succeed, summary
from tests.support.faults import READS, Fault
from tests.support.filesystems import mounted
from tests.support.held import held
from tests.support.oracle import changes, differences, snapshot
from tests.support.signatures import VECTORS, signed
from tests.support.users import require_root

OLD = b"#pcopy-manifest\nformat: pcopy-signature\n"
"""Older contents that a signature or a manifest may replace: they begin like both formats."""


@pytest.fixture
def source(area: Path) -> Path:
    """Return a source; older files have the names of signature and manifest."""
    VECTORS["outer"].make(area / "source")
    for name in ("sig", "manifest"):
        (area / name).write_bytes(OLD)
    return area / "source"


def assert_nothing_written(area: Path) -> None:
    assert {(area / name).read_bytes() for name in ("sig", "manifest")} == {OLD}
    assert not [path for path in area.iterdir() if path.name.startswith(".pcopy-")]


@pytest.mark.parametrize("policy", ["replace", "skip"])
def test_no_signature_is_written_after_a_failure(area: Path, source: Path, policy: str) -> None:
    if policy == "skip":
        subprocess.run(["cp", "-a", source, area / "copy"], check=True)
    fault = Fault(area / "trace", READS, source / "sub/b.bin", "EREMOTEIO")
    options = ("--existing", policy, "--signature", area / "sig", "--manifest", area / "manifest")
    run = pcopy("--json", *options, f"{source}/", area / "copy", wrap=fault.wrap(), ranks=2)
    fault.check()
    assert run.returncode == 1, show(run)
    reported = summary(run)
    assert (reported["failed"], reported["signature"]) == (1, None)
    assert b"pcopy: no signature or manifest was written, since not everything was copied\n" in run.stderr
    assert_nothing_written(area)


@pytest.mark.parametrize("option", ["--signature", "--manifest"])
def test_signature_of_a_socket_is_refused(area: Path, option: str) -> None:
    os.mknod(area / "socket", stat.S_IFSOCK | 0o600)
    before = snapshot(area)
    run = pcopy(option, area / "sig", area / "socket", area / "copy")
    assert run.returncode == 2, show(run)
    assert b"is a socket" in run.stderr
    assert changes(before, snapshot(area)) == []


@pytest.mark.parametrize("kept", [True, False])
def test_no_signature_is_written_after_a_stop(area: Path, source: Path, kept: bool) -> None:
    options: list[Argument] = ["--signature", area / "sig", "--manifest", area / "manifest"]
    options += [] if kept else ["--checkpoint=none"]
    with held(area / "log", *options, source, area / "copy", ranks=2) as run:
        run.run.send_signal(signal.SIGTERM)
        ended = run.go_on()
    assert ended.returncode == (75 if kept else 128 + signal.SIGTERM), show(ended)
    assert_nothing_written(area)


@pytest.mark.parametrize(
    ("option", "path", "reason"),
    [
        ("signature", "source/sig", "lies in"),
        ("manifest", "source/sub/sig", "lies in"),
        ("signature", "link/sig", "lies in"),
        ("signature", "copy/sig", "lies in"),
        ("manifest", "copy/../copy/sig", "lies in"),
        ("signature", "copy", "lies in"),
        ("signature", "source", "lies in"),
        ("signature", "nowhere/sig", "nowhere does not exist; create it first"),
        ("manifest", "sig/sig", "Not a directory"),
        ("signature", "directory", "is a directory"),
        ("manifest", "directory/", "is a directory"),
        ("signature", "pipe", "is not a regular file"),
        ("signature", "notes", "notes: is there already, and is no signature; name another file"),
        ("manifest", "notes", "notes: is there already, and is no manifest; name another file"),
        ("signature", "to-file", "to-file: is a symbolic link; name the file itself"),
        ("manifest", "to-pipe", "to-pipe: is a symbolic link; name the file itself"),
        ("signature", "to-nothing", "to-nothing: is a symbolic link; name the file itself"),
        ("manifest", "link", "link: is a symbolic link; name the file itself"),
        ("signature", "", "the empty string"),
        ("manifest", "", "the empty string"),
    ],
)
def test_invalid_path_of_a_signature_is_refused(area: Path, source: Path, option: str, path: str, reason: str) -> None:
    (area / "directory").mkdir()
    (area / "notes").write_bytes(b"a user's own\n")
    (area / "link").symlink_to("source")
    os.mkfifo(area / "pipe")
    for name, target in (("to-file", "sig"), ("to-pipe", "pipe"), ("to-nothing", "nowhere")):
        (area / name).symlink_to(target)
    before = snapshot(area)
    file = f"{area}/{path}" if path else ""
    assert_refused(pcopy(f"--{option}", file, source, area / "copy"), b"pcopy", reason)
    if not path.startswith("copy"):  # pverify has no destination
        words = ("--create", file) if option == "signature" else ("--create", area / "sig2", "--manifest", file)
        assert_refused(pverify(*words, source), b"pverify", reason)
    assert changes(before, snapshot(area)) == []


@pytest.mark.parametrize("option", ["signature", "manifest", "errors"])
@pytest.mark.parametrize("words", [("-T", "source"), ("source/",)], ids=["-T", "slash"])
def test_output_file_in_the_existing_destination_is_refused(
    area: Path, source: Path, option: str, words: tuple[str, ...]
) -> None:
    (area / "copy").mkdir()
    before = snapshot(area)
    assert_refused(pcopy(f"--{option}", area / "copy/out", *words, area / "copy", cwd=area), b"pcopy", "lies in")
    assert changes(before, snapshot(area)) == []


@pytest.mark.parametrize("option", ["signature", "manifest", "errors", "checkpoint"])
def test_output_file_in_the_destination_of_several_sources_is_refused(area: Path, source: Path, option: str) -> None:
    """The sources together are the whole DST, including all other items in it."""
    (area / "copy").mkdir()
    before = snapshot(area)
    run = pcopy(f"--{option}", area / "copy/out", source / "sub", source / "a.txt", area / "copy")
    assert_refused(run, b"pcopy", "lies in")
    assert changes(before, snapshot(area)) == []


def assert_refused(run: Completed, program: bytes, reason: str) -> None:
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert run.stderr.startswith(program + b": ") and reason.encode() in run.stderr
    assert run.stderr.count(b"\n") == 1, show(run)


def test_signature_and_manifest_in_one_file_are_refused(area: Path, source: Path) -> None:
    for one, other in (("new", "new"), ("new", "./new"), ("sig", "directory/../sig")):
        (area / "directory").mkdir(exist_ok=True)
        run = pcopy("--signature", f"{area}/{one}", "--manifest", f"{area}/{other}", source, area / "copy", cwd=area)
        assert run.returncode == 2 and b"cannot be the same file" in run.stderr, show(run)
        assert not (area / "copy").exists()


def test_signature_is_written_through_a_linked_directory(area: Path, source: Path) -> None:
    (area / "link").symlink_to(".")
    assert succeed("--signature", area / "link/sig", source, area / "copy").returncode == 0
    assert signed(area / "sig") == VECTORS["outer"].large


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("source/empty", "lies in"),
        ("source/new", "lies in"),
        ("link/new", "lies in"),
        ("copy/source/new", "lies in"),
        ("nowhere/new", "nowhere does not exist; create it first"),
        ("directory", "is a directory"),
        ("to-file", "is there already, and is not what --errors has written"),
        ("twice", "has other names"),
        ("", "the empty string"),
        ("sig", "signature and errors cannot be the same file"),
        ("directory/../sig", "signature and errors cannot be the same file"),
    ],
)
def test_invalid_path_of_the_errors_file_is_refused(area: Path, source: Path, path: str, reason: str) -> None:
    (area / "directory").mkdir()
    (area / "copy/source").mkdir(parents=True)
    (area / "link").symlink_to("source")
    (area / "to-file").symlink_to("manifest")
    os.link(area / "source/a.txt", area / "twice")
    before = snapshot(area)
    file = f"{area}/{path}" if path else ""
    assert_refused(pcopy("--errors", file, "--signature", area / "sig", source, area / "copy"), b"pcopy", reason)
    assert changes(before, snapshot(area)) == []


def test_copied_file_as_errors_file_is_refused(area: Path, source: Path) -> None:
    for file in (source / "a.txt", area / "target"):
        (area / "target").write_bytes(OLD)
        before = snapshot(area)
        assert_refused(pcopy("--errors", file, source / "a.txt", area / "target"), b"pcopy", "lies in")
        assert changes(before, snapshot(area)) == []


def test_errors_are_written_to_a_pipe(area: Path, source: Path) -> None:
    os.mkfifo(area / "pipe")
    (area / "way").symlink_to("pipe")
    (area / "copy").mkdir()
    (area / "copy/a.txt").touch()
    reader = os.open(area / "pipe", os.O_RDWR | os.O_NONBLOCK)
    for name in ("pipe", "way"):
        run = pcopy("--existing", "fail", "--errors", area / name, source / "a.txt", area / "copy")
        assert run.returncode == 1, show(run)
        assert json.loads(os.read(reader, 4096))["path"] == f"{area}/copy/a.txt"
    os.close(reader)
    assert (area / "pipe").is_fifo() and (area / "way").is_symlink()


@pytest.mark.parametrize("option", ["signature", "manifest"])
def test_full_disk_keeps_the_older_signature(area: Path, source: Path, option: str) -> None:
    """The copy succeeds, the error is reported, and the older file is kept."""
    require_root("mount a small tmpfs")
    for number in range(300):
        (source / f"{number}-{'x' * 200}").touch()
    with mounted("tmpfs", area, 32 << 10) as small:
        (small / "file").write_bytes(OLD)
        with open(small / "filler", "wb", buffering=0) as filler:
            while option == "signature":
                try:
                    filler.write(bytes(4096))
                except OSError:
                    break
        run = pcopy("--json", f"--{option}", small / "file", source, area / "copy", ranks=2)
        assert run.returncode == 1, show(run)
        reported = summary(run)
        assert (reported["failed"], reported["signature"]) == (0, None)
        assert f"pcopy: {small}/file: the {option} could not be written: ".encode() in run.stderr, show(run)
        assert b"No space left on device" in run.stderr and b"not everything was copied" not in run.stderr
        assert sorted(path.name for path in small.iterdir()) == ["file", "filler"]
        assert (small / "file").read_bytes() == OLD
    assert differences(source, area / "copy") == []


@pytest.mark.parametrize(("program", "option", "status"), [("pcopy", "--signature", 1), ("pverify", "--create", 2)])
def test_full_disk_for_the_manifest_keeps_both_older_files(
    area: Path, source: Path, program: str, option: str, status: int
) -> None:
    """A new signature beside an old manifest would describe two different trees."""
    require_root("mount a small tmpfs")
    for number in range(300):
        (source / f"{number}-{'x' * 200}").touch()
    trees = [source, area / "copy"] if program == "pcopy" else [source, "--force"]
    with mounted("tmpfs", area, 32 << 10) as small:
        (small / "manifest").write_bytes(OLD)
        run = pcopy(option, area / "sig", "--manifest", small / "manifest", *trees, program=program)
        assert run.returncode == status, show(run)
        assert f"{program}: {small}/manifest: the manifest could not be written: ".encode() in run.stderr
        assert (small / "manifest").read_bytes() == (area / "sig").read_bytes() == OLD


WARNING = b"DST holds more than the source"


def test_extra_items_in_the_destination_give_a_warning(area: Path, source: Path) -> None:
    def copied(*sources: Argument) -> bytes:
        return succeed("--signature", area / "sig", *sources, area / "copy", ranks=2).stderr

    VECTORS["inner"].make(area / "other")
    (area / "copy").mkdir()
    assert WARNING not in copied(f"{source}/")
    (area / "copy/sub/more").touch()
    assert WARNING in copied(f"{source}/")
    assert WARNING not in copied(source)  # its own directory in DST has no extra items
    (area / "copy/sub/more").unlink()
    assert WARNING in copied(source, area / "other")
    shutil.rmtree(area / "copy")
    (area / "copy").mkdir()
    assert WARNING not in copied(source, area / "other")
    assert WARNING not in copied(source, area / "other")
    assert WARNING in copied(f"{source}/", area / "other")
    shutil.rmtree(area / "copy/source")
    assert WARNING not in copied(f"{source}/", area / "other")


def test_extra_items_in_the_destination_on_btrfs_give_a_warning(area: Path, source: Path) -> None:
    """On btrfs, an open directory must be rewound to show items created after its opening."""
    with mounted("btrfs", area) as btrfs:
        (btrfs / "copy/sub").mkdir(parents=True)
        assert WARNING not in succeed("--signature", area / "sig", "-T", source, btrfs / "copy").stderr
        shutil.rmtree(btrfs / "copy")
        (btrfs / "copy/sub").mkdir(parents=True)
        (btrfs / "copy/sub/more").touch()
        (btrfs / "copy/more").touch()
        assert WARNING in succeed("--signature", area / "sig", "-T", source, btrfs / "copy").stderr
