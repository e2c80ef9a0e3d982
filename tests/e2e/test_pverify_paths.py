"""What the paths lead to that pverify is given: links, pipes, places that are gone, files that may be signatures."""

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


def assert_trouble(run: Completed, reason: str) -> None:
    """One line that says what is wrong."""
    assert (run.returncode, run.stdout) == (2, b""), show(run)
    assert run.stderr.count(b"\n") == 1 and reason.encode() in run.stderr, show(run)


def in_a_place_that_is_gone(program: str, *words: Argument) -> Completed:
    line, environment = command(*words, program=program, ranks=1)
    script = f'mkdir "$1"; cd "$1"; rmdir "$1"; exec {shlex.join(os.fsdecode(word) for word in line)}'
    place = os.path.join(environment["HOME"], "gone")
    return subprocess.run(["sh", "-c", script, "sh", place], env=environment, capture_output=True, check=False)


def test_without_a_current_directory(area: Path, tree: Path) -> None:
    reason = "the current directory does not exist any longer"
    for lost in ((tree, "."), (".", tree), ("--create", "new", tree), ("--manifest", "new", "--create", "n", tree)):
        assert_trouble(in_a_place_that_is_gone("pverify", *lost), reason)
    assert_trouble(in_a_place_that_is_gone("pcopy", "--signature", "new", tree, area / "copy"), reason)
    for words in ((tree, tree), ("--create", area / "sig", tree), (area / "sig", tree)):
        run = in_a_place_that_is_gone("pverify", *words)
        assert run.returncode == 0, show(run)
    options = ("--signature", area / "sig", "--checkpoint", area / "job")
    run = in_a_place_that_is_gone("pcopy", *options, tree, area / "copy")
    assert run.returncode == 0 and pverify("-q", area / "sig", area / "copy").returncode == 0, show(run)


@pytest.mark.parametrize("program", ["pcopy", "pverify"])
def test_what_nobody_expected_is_an_internal_error(area: Path, tree: Path, program: str) -> None:
    """Python's own status would say that items failed, or that something differs."""
    line, environment = command()
    script = f"from pcopy.cli import {program}, script; {program}.{program.upper()}.parse = None; script.{program}()"
    run = subprocess.run([line[0], "-c", script, tree, tree], env=environment, capture_output=True, check=False)
    assert (run.returncode, run.stdout) == (70, b""), run
    assert run.stderr.startswith(b"Traceback ") and b"TypeError" in run.stderr
    assert run.stderr.endswith(f"{program}: internal error: TypeError (see above)\n".encode()), run


@pytest.mark.parametrize(("module", "package"), [("yaml", "PyYAML"), ("xxhash", "xxhash")])
def test_a_package_that_is_missing_is_named(area: Path, tree: Path, module: str, package: str) -> None:
    assert pverify("--create", area / "sig", tree).returncode == 0
    (area / "path").mkdir()
    (area / f"path/{module}.py").write_text(f"raise ModuleNotFoundError('No module', name='{module}')\n")
    for launcher in (None, "mpi"):
        run = pverify(area / "sig", tree, env={"PYTHONPATH": f"{area}/path:{REPOSITORY}"}, launcher=launcher)
        reported = f"pverify: the Python package {package} cannot be loaded (No module); install it\n".encode()
        assert (run.returncode, run.stdout) == (2, b""), show(run)
        assert run.stderr.count(reported) == 1 and b"Traceback" not in run.stderr, show(run)


def test_a_package_that_may_not_be_read_is_not_to_be_installed(area: Path, tree: Path) -> None:
    """A virtual environment below /root, say; Python itself passes it by."""
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
def test_a_copy_without_the_package_of_its_digests_is_refused_at_once(
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
def test_the_signature_of_a_link_is_that_of_the_link(area: Path, tree: Path, target: str) -> None:
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
    if target == "tree":  # with a slash it is the directory
        assert pverify("-q", area / "sig", f"{area}/copy/").returncode == 1


def test_any_other_signature_is_of_what_a_link_leads_to(area: Path, tree: Path) -> None:
    (area / "link").symlink_to("tree")
    for path in (tree, area / "link"):
        run = pverify("--force", "--create", area / "sig", "--manifest", area / "manifest", path)
        assert run.returncode == 0, show(run)
        for words in ((area / "sig",), ("--manifest", area / "manifest"), (tree,)):
            assert pverify("-q", *words, area / "link").returncode == 0


def test_files_that_mention_signatures_are_data(area: Path) -> None:
    for name in ("pcopy/signature/signature_file.py", "docs/formats/signature.md"):
        for copy in ("one", "two"):
            shutil.copyfile(REPOSITORY / name, area / copy)
        assert pverify("-q", area / "one", area / "two").returncode == 0
        with open(area / "two", "ab") as file:
            file.write(b"\n")
        run = pverify("-q", area / "one", area / "two")
        assert (run.returncode, reported(run), run.stderr) == (1, ["changed ."], b""), show(run)


Spoiling = Callable[[bytes], bytes]
SIGNATURES: dict[str, tuple[Spoiling, str]] = {
    "first-line": (lambda data: data[: data.index(b"\n")], "lacks the key version"),
    "cut": (lambda data: data[:20], "its format is not pcopy-signature"),
    "binary": (lambda data: data[:30] + b"\xff" + data[31:], "is not UTF-8"),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_damaged_signatures_of_a_file(area: Path, name: str) -> None:
    VECTORS["hello"].make(area / "file")
    assert pverify("--create", area / "whole", area / "file").returncode == 0
    spoil, reason = SIGNATURES[name]
    (area / "sig").write_bytes(spoil((area / "whole").read_bytes()))
    assert_trouble(pverify(area / "sig", area / "file"), reason)


def test_files_that_may_be_data_are_compared(area: Path) -> None:
    """As cmp does, and so it is the oracle."""
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
    assert_trouble(pverify(area / "manifest", area / "file"), reason)


@pytest.mark.parametrize("number", [1, 3])
def test_a_size_that_was_changed_in_a_manifest(area: Path, tree: Path, number: int) -> None:
    run = pverify("--create", area / "sig", "--manifest", area / "manifest", tree)
    assert run.returncode == 0, show(run)
    text = (area / "manifest").read_bytes()
    assert text.count(b" 200000 sub/b.bin\n") == 1
    (area / "manifest").write_bytes(text.replace(b" 200000 sub/b.bin\n", b" 200001 sub/b.bin\n"))
    run = pverify("-q", "--manifest", area / "manifest", tree, ranks=number)
    assert_trouble(run, f"{area}/manifest: is damaged")


def test_what_has_no_name_cannot_be_compared(area: Path, tree: Path) -> None:
    assert pverify("--create", area / "sig", tree).returncode == 0

    def piped(script: str) -> Completed:
        line, environment = command("-q", program="pverify", ranks=1)
        run = f"{shlex.join(os.fsdecode(word) for word in line)} {script}"
        return subprocess.run(["bash", "-c", run], cwd=area, env=environment, capture_output=True, check=False)

    assert_trouble(piped("<(cat sig) tree"), "is no regular file; put the signature into one")
    assert_trouble(piped("<(cat sig) tree/a.txt"), "is a pipe, or a file without a name")
    assert_trouble(piped("sig <(cat tree/a.txt)"), "is a pipe, or a file without a name")


@pytest.mark.parametrize("name", ["new/", "new/.", "tree/..", "."])
def test_a_directory_is_no_file_to_write(area: Path, tree: Path, name: str) -> None:
    before = sorted(os.listdir(area))
    assert_trouble(pverify("--create", name, tree, cwd=area), "is a directory")
    assert_trouble(pverify("--create", "sig", "--manifest", name, tree, cwd=area), "is a directory")
    for option in ("--signature", "--manifest", "--errors"):
        assert_trouble(pcopy(option, name, tree, "copy", cwd=area), "is a directory")
    assert sorted(os.listdir(area)) == before


def test_what_leads_upwards_behind_a_link(area: Path, tree: Path) -> None:
    """``link/..`` is where the link leads, one higher, for the kernel, and not where the link is."""
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


def test_what_may_not_be_looked_at(area: Path, tree: Path) -> None:
    require_root("keep something from another user")
    succeed("--signature", area / "sig", tree, area / "copy")
    (area / "sig").chmod(0o600)
    assert_trouble(pverify(area / "sig", tree, user=NOBODY), f"{area}/sig: Permission denied; check its mode")
    (area / "private").mkdir(mode=0o700)
    for words in (("private/tree", "tree"), ("tree", "private/tree")):
        reported = f"private/tree: Permission denied; {area}/private may not be entered: check its mode"
        assert_trouble(pverify(*words, cwd=area, user=NOBODY), reported)


def test_answers_that_a_closed_standard_output_loses(area: Path, tree: Path) -> None:
    VECTORS["inner"].make(area / "other")
    assert pverify("--create", area / "sig", tree).returncode == 0

    def closed(*words: str) -> Completed:
        line, environment = command("-q", *words, program="pverify", ranks=2)
        script = f"{shlex.join(os.fsdecode(word) for word in line)} >&-"
        return subprocess.run(["sh", "-c", script], cwd=area, env=environment, capture_output=True, check=False)

    for words in (("tree", "other"), ("--json", "sig", "tree"), ("--json", "sig", "other")):
        assert_trouble(closed(*words), "pverify: standard output cannot be written: Bad file descriptor")
    for words, status in ((("tree", "tree"), 0), (("sig", "tree"), 0), (("sig", "other"), 1)):  # which print nothing
        assert closed(*words).returncode == status


def bind(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(path))


def test_a_socket_is_nothing_more_that_the_destination_holds(area: Path, tree: Path) -> None:
    shutil.copytree(tree, area / "copy", symlinks=True, copy_function=shutil.copy2, ignore=lambda *_: ["pipe"])
    bind(area / "copy/sub/socket")
    words = ("--signature", area / "sig", f"{tree}/", area / "copy")
    for own in (False, True):  # the source has one, too: the target has two
        if own:
            bind(tree / "sub/own")
        assert b"DST holds more" not in succeed(*words, ranks=2).stderr
        assert pverify("-q", area / "sig", area / "copy").returncode == 0
    (area / "copy/sub/more").touch()
    for own in (True, False):  # the source's hides nothing
        assert b"DST holds more" in succeed(*words, ranks=2).stderr
        assert pverify("-q", area / "sig", area / "copy").returncode == 1
        if own:
            (tree / "sub/own").unlink()
    (area / "copy/sub/more").unlink()
    assert b"DST holds more" not in succeed(*words, ranks=2).stderr


def test_a_socket_that_is_copied_hides_nothing_that_the_destination_holds(area: Path, tree: Path) -> None:
    bind(tree / "sub/own")
    (area / "copy/sub").mkdir(parents=True)
    (area / "copy/sub/more").touch()
    assert b"DST holds more" in succeed("--signature", area / "sig", f"{tree}/", area / "copy", ranks=2).stderr


def test_a_socket_beside_several_sources_is_nothing_more(area: Path, tree: Path) -> None:
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


def test_an_old_signature_is_kept_unless_it_may_be_replaced(area: Path, tree: Path) -> None:
    create: list[Argument] = ["--create", area / "sig", "--manifest", area / "manifest"]
    assert pverify(*create, tree).returncode == 0
    before = (area / "sig").read_bytes(), (area / "manifest").read_bytes()
    (tree / "more").write_bytes(b"more")
    for launcher in (None, "mpi"):
        assert_trouble(
            pverify(*create, tree, launcher=launcher), f"{area}/sig: already exists and is not replaced; --force"
        )
    beside = pverify("--create", area / "new", "--manifest", area / "manifest", tree)
    assert_trouble(beside, f"{area}/manifest: already exists and is not replaced; --force")
    assert not (area / "new").exists()
    assert ((area / "sig").read_bytes(), (area / "manifest").read_bytes()) == before
    assert_trouble(pverify("--force", tree, tree), "--force lets --create")
    (area / "notes").write_bytes(b"mine")
    for force in ([], ["--force"]):
        run = pverify(*force, "--create", area / "notes", tree)
        assert_trouble(run, f"{area}/notes: is there already, and is no signature")
        run = pverify(*force, "--create", area / "new", "--manifest", area / "notes", tree)
        assert_trouble(run, f"{area}/notes: is there already, and is no manifest")
    assert_trouble(pverify("--create", tree, area / "new"), f"pverify --create SIGNATURE {tree}")
    assert pverify(*create, "--force", tree).returncode == 0
    assert pverify(area / "sig", tree).returncode == 0
    assert pverify("--manifest", area / "manifest", tree).returncode == 0


def test_a_signature_in_the_second_place_is_told_where_it_belongs(area: Path, tree: Path) -> None:
    assert pverify("--create", area / "sig", "--manifest", area / "manifest", tree).returncode == 0
    (area / "file").write_bytes(b"contents")
    for first in (tree, area / "file", area / "manifest"):
        run = pverify(first, area / "sig")
        assert_trouble(run, f"{area}/sig: is a signature, which comes before")
        assert f"pverify {area}/sig {first}\n".encode() in run.stderr, show(run)
    compare = f"pverify --manifest {area}/manifest {tree}\n"
    assert_trouble(pverify(tree, area / "manifest"), compare)
    assert_trouble(pverify(area / "manifest", tree), compare)
    assert_trouble(pverify("--manifest", tree, area / "manifest"), compare)
    assert_trouble(pverify("--manifest", area / "sig", tree), f"is a signature; compare with it by pverify {area}/sig")
    assert pverify(area / "sig", area / "sig").returncode == 1  # the first is one: is the second what it tells of?
