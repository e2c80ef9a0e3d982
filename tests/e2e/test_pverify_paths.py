"""Paths given to pverify: links, pipes, removed directories, and files that may be signatures."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command import REPOSITORY, Argument, Completed, command, pcopy, pverify, show, succeed
from tests.support.signatures import VECTORS, reported
from tests.support.users import NOBODY, require_root


@pytest.fixture
def tree(area: Path) -> Path:
    VECTORS["outer"].make(area / "tree")
    return area / "tree"


def assert_error(run: Completed, reason: str) -> None:
    """Check for status 2 and a single line on standard error that contains ``reason``."""
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert run.stderr.count(b"\n") == 1 and reason.encode() in run.stderr, show(run)


def run_in_removed_directory(program: str, *words: Argument) -> Completed:
    line, environment = command(*words, program=program, ranks=1)
    script = f'mkdir "$1"; cd "$1"; rmdir "$1"; exec {shlex.join(os.fsdecode(word) for word in line)}'
    place = os.path.join(environment["HOME"], "gone")
    return subprocess.run(["sh", "-c", script, "sh", place], env=environment, capture_output=True, check=False)


def test_removed_working_directory_is_an_error_only_for_relative_paths(area: Path, tree: Path) -> None:
    reason = "the current directory does not exist any longer"
    for lost in ((tree, "."), (".", tree), ("--create", "new", tree), ("--manifest", "new", "--create", "n", tree)):
        assert_error(run_in_removed_directory("pverify", *lost), reason)
    assert_error(run_in_removed_directory("pcopy", "--signature", "new", tree, area / "copy"), reason)
    for words in ((tree, tree), ("--create", area / "sig", tree), (area / "sig", tree)):
        run = run_in_removed_directory("pverify", *words)
        assert run.returncode == 0, show(run)
    options = ("--signature", area / "sig", "--checkpoint", area / "job")
    run = run_in_removed_directory("pcopy", *options, tree, area / "copy")
    assert run.returncode == 0 and pverify("-q", area / "sig", area / "copy").returncode == 0, show(run)


@pytest.mark.parametrize("program", ["pcopy", "pverify"])
def test_unexpected_exception_is_an_internal_error(area: Path, tree: Path, program: str) -> None:
    """Python's own status 1 would mean failed items or differences."""
    line, environment = command()
    script = (
        f"from pcopy.cli import {program}, script; "
        f"{program}.{program.upper()}.parse_command_line = None; script.{program}()"
    )
    run = subprocess.run([line[0], "-c", script, tree, tree], env=environment, capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (70, b""), run
    assert run.stderr.startswith(b"Traceback ") and b"TypeError" in run.stderr
    assert run.stderr.endswith(f"{program}: internal error: TypeError (see above)\n".encode()), run


@pytest.mark.parametrize(("module", "package"), [("yaml", "PyYAML"), ("xxhash", "xxhash")])
def test_missing_package_is_named(area: Path, tree: Path, module: str, package: str) -> None:
    assert pverify("--create", area / "sig", tree).returncode == 0
    (area / "path").mkdir()
    (area / f"path/{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')\n")
    for launcher in (None, "mpi"):
        run = pverify(area / "sig", tree, env={"PYTHONPATH": f"{area}/path:{REPOSITORY}"}, launcher=launcher)
        reported = f"pverify: this needs the Python package {package}: pip install {package}\n".encode()
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        assert run.stderr.count(reported) == 1 and b"Traceback" not in run.stderr, show(run)


def test_unreadable_package_directory_is_named(area: Path, tree: Path) -> None:
    """The package may be in it, as in a virtual environment below /root, which Python skips silently."""
    require_root("run as another user")
    for name in ("path", "closed"):
        (area / name).mkdir()
    (area / "path/xxhash.py").write_text("raise ModuleNotFoundError('No module', name='xxhash')\n")
    (area / "closed").chmod(0o700)
    search = command(user=NOBODY)[1]["PYTHONPATH"]
    run = pverify(tree, tree, user=NOBODY, env={"PYTHONPATH": f"{area}/path:{search}:{area}/closed"})
    assert run.returncode == 2, show(run)
    assert run.stderr.endswith(f"; this user may not read {area}/closed, where it may be\n".encode()), show(run)


@pytest.mark.in_turn(4)
@pytest.mark.parametrize("words", [["--verify"], ["--repair"], ["--signature", "sig"], ["--hash", "blake3"]])
@pytest.mark.parametrize("launcher", [None, "mpi"])
def test_copy_is_refused_if_the_digest_package_is_missing(
    area: Path, tree: Path, words: list[str], launcher: str | None
) -> None:
    (area / "path").mkdir()
    for module in ("xxhash", "blake3"):
        (area / f"path/{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')\n")
    env = {"PYTHONPATH": f"{area}/path:{REPOSITORY}"}
    run = pcopy(*words, tree, area / "copy", env=env, cwd=area, ranks=2, launcher=launcher)
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert run.stderr.count(b"the Python package ") == 1 and b"Traceback" not in run.stderr, show(run)
    assert not (area / "copy").exists()


@pytest.mark.parametrize("target", ["tree/a.txt", "tree", "nowhere"])
def test_signature_of_a_copied_link_is_that_of_the_link(area: Path, tree: Path, target: str) -> None:
    (area / "link").symlink_to(target)
    succeed("--signature", area / "sig", "--manifest", area / "manifest", area / "link", area / "copy")
    assert os.readlink(area / "copy") == target
    (area / "other").symlink_to(f"./{target}")
    for words in ((area / "sig",), ("--manifest", area / "manifest")):
        same, other = pverify("-q", *words, area / "copy"), pverify("-q", *words, area / "other")
        assert (same.returncode, same.stderr) == (0, b""), show(same)
        assert (other.returncode, other.stderr) == (1, b""), show(other)
        assert pverify("-q", *words, "copy", cwd=area).returncode == 0
        assert pverify("-q", *words, tree).returncode == 1
    if target == "tree":  # a trailing slash follows the link
        assert pverify("-q", area / "sig", f"{area}/copy/").returncode == 1


def test_pverify_follows_a_link_given_as_path(area: Path, tree: Path) -> None:
    (area / "link").symlink_to("tree")
    for path in (tree, area / "link"):
        run = pverify("--force", "--create", area / "sig", "--manifest", area / "manifest", path)
        assert run.returncode == 0, show(run)
        for words in ((area / "sig",), ("--manifest", area / "manifest"), (tree,)):
            assert pverify("-q", *words, area / "link").returncode == 0


def test_files_that_mention_signatures_are_compared_as_data(area: Path) -> None:
    for name in ("pcopy/signature/signature_file.py", "docs/formats/signature.md"):
        for copy in ("one", "two"):
            shutil.copyfile(REPOSITORY / name, area / copy)
        assert pverify("-q", area / "one", area / "two").returncode == 0
        with open(area / "two", "ab") as file:
            file.write(b"\n")
        run = pverify("-q", area / "one", area / "two")
        assert (run.returncode, reported(run), run.stderr) == (1, ["changed ."], b""), show(run)


Corruption = Callable[[bytes], bytes]
SIGNATURES: dict[str, tuple[Corruption, str]] = {
    "first-line": (lambda data: data[: data.index(b"\n")], "lacks the key version"),
    "cut": (lambda data: data[:20], "its format is not pcopy-signature"),
    "binary": (lambda data: data[:30] + b"\xff" + data[31:], "is not UTF-8"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_damaged_signature_of_a_file_is_refused(area: Path, name: str) -> None:
    VECTORS["hello"].make(area / "file")
    assert pverify("--create", area / "whole", area / "file").returncode == 0
    corrupt, reason = SIGNATURES[name]
    (area / "sig").write_bytes(corrupt((area / "whole").read_bytes()))
    assert_error(pverify(area / "sig", area / "file"), reason)


def test_files_are_compared_as_by_cmp(area: Path) -> None:
    """The files could be signatures or manifests; cmp gives the expected result."""
    VECTORS["hello"].make(area / "file")
    options = ("--force", "--create", area / "sig", "--manifest", area / "manifest")
    assert pverify(*options, area / "file").returncode == 0
    (area / "empty").touch()
    (area / "cut").write_bytes((area / "sig").read_bytes()[:20])
    for name in ("empty", "cut", "manifest", "file"):
        shutil.copyfile(area / name, area / f"{name}2")
    pairs = [(name, f"{name}2") for name in ("empty", "cut", "manifest", "file")]
    for one, other in (*pairs, ("empty", "file"), ("file", "empty"), ("file", "cut"), ("file", "manifest")):
        compared = subprocess.run(["cmp", "-s", area / one, area / other], check=False).returncode
        assert pverify("-q", area / one, area / other).returncode == compared, (one, other)
    reason = f"is a manifest; compare with it by pverify --manifest {area}/manifest {area}/file"
    assert_error(pverify(area / "manifest", area / "file"), reason)


@pytest.mark.parametrize("number", [1, 3])
def test_changed_size_in_a_manifest_is_damage(area: Path, tree: Path, number: int) -> None:
    run = pverify("--create", area / "sig", "--manifest", area / "manifest", tree)
    assert run.returncode == 0, show(run)
    text = (area / "manifest").read_bytes()
    assert text.count(b" 200000 sub/b.bin\n") == 1
    (area / "manifest").write_bytes(text.replace(b" 200000 sub/b.bin\n", b" 200001 sub/b.bin\n"))
    run = pverify("-q", "--manifest", area / "manifest", tree, ranks=number)
    assert_error(run, f"{area}/manifest: is damaged")


def test_pipes_cannot_be_compared(area: Path, tree: Path) -> None:
    assert pverify("--create", area / "sig", tree).returncode == 0

    def piped(script: str) -> Completed:
        line, environment = command("-q", program="pverify", ranks=1)
        run = f"{shlex.join(os.fsdecode(word) for word in line)} {script}"
        return subprocess.run(["bash", "-c", run], cwd=area, env=environment, capture_output=True, check=False)

    assert_error(piped("<(cat sig) tree"), "is not a regular file; put the signature into one")
    assert_error(piped("<(cat sig) tree/a.txt"), "is a pipe, or a file without a name")
    assert_error(piped("sig <(cat tree/a.txt)"), "is a pipe, or a file without a name")


@pytest.mark.parametrize("name", ["new/", "new/.", "tree/..", "."])
def test_directory_as_output_file_is_refused(area: Path, tree: Path, name: str) -> None:
    before = sorted(os.listdir(area))
    assert_error(pverify("--create", name, tree, cwd=area), "is a directory")
    assert_error(pverify("--create", "sig", "--manifest", name, tree, cwd=area), "is a directory")
    for option in ("--signature", "--manifest", "--errors"):
        assert_error(pcopy(option, name, tree, "copy", cwd=area), "is a directory")
    assert sorted(os.listdir(area)) == before


def test_dot_dot_after_a_link_leads_to_the_parent_of_its_target(area: Path, tree: Path) -> None:
    """``link/..`` is resolved as by the operating system, not textually."""
    (area / "real/sub").mkdir(parents=True)
    (area / "link").symlink_to("real/sub")
    VECTORS["inner"].make(area / "other")
    (area / "notes").write_bytes(mine := b"#pcopy-manifest of another tree")
    options = ("--signature", "link/../sig", "--manifest", "link/../notes", "--errors", "link/../errors")
    succeed(*options, "--checkpoint", "link/../job", "--spool", "link/../sub", tree, "copy", cwd=area)
    assert sorted(os.listdir(area / "real")) == ["errors", "notes", "sig", "sub"]
    assert (area / "notes").read_bytes() == mine
    shutil.copy(area / "real/notes", area / "manifest")
    assert (
        pverify(
            "-q", "--force", "--create", "link/../sig", "--manifest", "link/../manifest", "other", cwd=area
        ).returncode
        == 0
    )
    assert (area / "manifest").read_bytes() == (area / "real/notes").read_bytes()
    assert pverify("-q", "--manifest", "link/../manifest", "other", cwd=area).returncode == 0
    assert pverify("-q", "--manifest", "link/../manifest", "tree", cwd=area).returncode == 1
    assert pverify("-q", "--manifest", "manifest", "tree", cwd=area).returncode == 0
    assert pverify("-q", "link/../sig", "other", cwd=area).returncode == 0


def test_path_without_permission_is_reported(area: Path, tree: Path) -> None:
    require_root("keep something from another user")
    succeed("--signature", area / "sig", tree, area / "copy")
    (area / "sig").chmod(0o600)
    assert_error(pverify(area / "sig", tree, user=NOBODY), f"{area}/sig: Permission denied; check its mode")
    (area / "private").mkdir(mode=0o700)
    for words in (("private/tree", "tree"), ("tree", "private/tree")):
        reported = f"private/tree: Permission denied; {area}/private may not be entered: check its mode"
        assert_error(pverify(*words, cwd=area, user=NOBODY), reported)


def test_closed_standard_output_is_an_error_only_if_something_is_printed(area: Path, tree: Path) -> None:
    VECTORS["inner"].make(area / "other")
    assert pverify("--create", area / "sig", tree).returncode == 0

    def closed(*words: str) -> Completed:
        line, environment = command("-q", *words, program="pverify", ranks=2)
        script = f"{shlex.join(os.fsdecode(word) for word in line)} >&-"
        return subprocess.run(["sh", "-c", script], cwd=area, env=environment, capture_output=True, check=False)

    for words in (("tree", "other"), ("--json", "sig", "tree"), ("--json", "sig", "other")):
        assert_error(closed(*words), "pverify: standard output cannot be written: Bad file descriptor")
    for words, status in ((("tree", "tree"), 0), (("sig", "tree"), 0), (("sig", "other"), 1)):  # these print nothing
        assert closed(*words).returncode == status


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(path))


def test_socket_in_the_destination_is_no_extra_item(area: Path, tree: Path) -> None:
    shutil.copytree(tree, area / "copy", symlinks=True, copy_function=shutil.copy2, ignore=lambda *_: ["pipe"])
    bind(area / "copy/sub/socket")
    words = ("--signature", area / "sig", f"{tree}/", area / "copy")
    for own in (False, True):  # with ``own``, the source has a socket, too
        if own:
            bind(tree / "sub/own")
        assert b"DST holds more" not in succeed(*words, ranks=2).stderr
        assert pverify("-q", area / "sig", area / "copy").returncode == 0
    (area / "copy/sub/more").touch()
    for own in (True, False):  # the socket of the source hides no extra item
        assert b"DST holds more" in succeed(*words, ranks=2).stderr
        assert pverify("-q", area / "sig", area / "copy").returncode == 1
        if own:
            (tree / "sub/own").unlink()
    (area / "copy/sub/more").unlink()
    assert b"DST holds more" not in succeed(*words, ranks=2).stderr


def test_copied_socket_does_not_hide_extra_items(area: Path, tree: Path) -> None:
    bind(tree / "sub/own")
    (area / "copy/sub").mkdir(parents=True)
    (area / "copy/sub/more").touch()
    assert b"DST holds more" in succeed("--signature", area / "sig", f"{tree}/", area / "copy", ranks=2).stderr


def test_socket_in_the_destination_of_several_sources_is_no_extra_item(area: Path, tree: Path) -> None:
    VECTORS["hello"].make(area / "file")
    (area / "copy").mkdir()
    words = ("--signature", area / "sig", f"{tree}/", area / "file", area / "copy")
    succeed(*words)
    bind(area / "copy/socket")
    assert b"DST holds more" not in pcopy(*words).stderr
    assert pverify("-q", area / "sig", area / "copy").returncode == 0
    (area / "copy/more").touch()
    assert b"DST holds more" in pcopy(*words).stderr
    assert pverify("-q", area / "sig", area / "copy").returncode == 1


def test_existing_signature_is_replaced_only_with_force(area: Path, tree: Path) -> None:
    create: list[Argument] = ["--create", area / "sig", "--manifest", area / "manifest"]
    assert pverify(*create, tree).returncode == 0
    before = (area / "sig").read_bytes(), (area / "manifest").read_bytes()
    (tree / "more").write_bytes(b"more")
    for launcher in (None, "mpi"):
        assert_error(
            pverify(*create, tree, launcher=launcher), f"{area}/sig: already exists and is not replaced; --force"
        )
    beside = pverify("--create", area / "new", "--manifest", area / "manifest", tree)
    assert_error(beside, f"{area}/manifest: already exists and is not replaced; --force")
    assert not (area / "new").exists()
    assert ((area / "sig").read_bytes(), (area / "manifest").read_bytes()) == before
    assert_error(pverify("--force", tree, tree), "--force lets --create")
    (area / "notes").write_bytes(b"mine")
    for force in ([], ["--force"]):
        run = pverify(*force, "--create", area / "notes", tree)
        assert_error(run, f"{area}/notes: is there already, and is no signature")
        run = pverify(*force, "--create", area / "new", "--manifest", area / "notes", tree)
        assert_error(run, f"{area}/notes: is there already, and is no manifest")
    assert_error(pverify("--create", tree, area / "new"), f"pverify --create SIGNATURE {tree}")
    assert pverify(*create, "--force", tree).returncode == 0
    assert pverify(area / "sig", tree).returncode == 0
    assert pverify("--manifest", area / "manifest", tree).returncode == 0


def test_signature_as_second_path_is_refused_with_the_right_order(area: Path, tree: Path) -> None:
    assert pverify("--create", area / "sig", "--manifest", area / "manifest", tree).returncode == 0
    (area / "file").write_bytes(b"contents")
    for first in (tree, area / "file", area / "manifest"):
        run = pverify(first, area / "sig")
        assert_error(run, f"{area}/sig: is a signature; name the signature first")
        assert f"pverify {area}/sig {first}\n".encode() in run.stderr, show(run)
    compare = f"pverify --manifest {area}/manifest {tree}\n"
    assert_error(pverify(tree, area / "manifest"), compare)
    assert_error(pverify(area / "manifest", tree), compare)
    assert_error(pverify("--manifest", tree, area / "manifest"), compare)
    assert_error(pverify("--manifest", area / "sig", tree), f"is a signature; compare with it by pverify {area}/sig")
    assert pverify(area / "sig", area / "sig").returncode == 1  # the second is compared as an ordinary file
