"""``ptar -t``, ``-tv`` and ``-v`` print odd names byte for byte as GNU tar does; and each program names itself by the
name under which it was started.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.archives import ptar
from tests.support.command import show

ROOT = Path(__file__).resolve().parents[2]

NAMES = (
    *(b"%c" % byte + b"x" for byte in range(1, 256) if byte != ord("/")),
    *(b"end %c" % byte for byte in range(1, 256) if byte != ord("/")),
    "é".encode(),
    "日本語 ☃".encode(),
    "e\u0301 combined".encode(),
    "🙂".encode(),
    "\u0085 C1".encode(),
    b"\xc3 cut",
    b"cut \xe6\x97",
    b"\xc0\xaf overlong",
    b"\xed\xa0\x80 surrogate",
    b"\xf5\x80\x80\x80 too large",
    b"both \xc3\xa9 \xff",
    b" leading and trailing ",
    b"*?[\"']$`!&;|<>(){}#~=%^",
    b"\\101 digits",
    b"\\",
    b"\n\t\\\r\a\b\f\v\x1b[31m\x7f",
    b"-dash",
)
HIDDEN = ("\u202e direction", "\u200b width", "\u2028 separator", "\u00a0 space")
"""Names with characters that tar prints as they are, although a terminal acts on them or shows nothing."""


@pytest.fixture
def tree(tmp_path: Path) -> bytes:
    """A directory with odd names: files, a directory, symbolic links, and a hard link."""
    tree = os.fsencode(tmp_path) + b"/tree"
    os.mkdir(tree)
    for name in NAMES:
        with open(tree + b"/" + name, "xb"):
            os.utime(tree + b"/" + name, (10**9, 10**9))
    os.mkdir(tree + b"/directory \xff\n")
    os.symlink(b"to \xff\t\\", tree + b"/link \xfe")
    os.link(tree + b"/both \xc3\xa9 \xff", tree + b"/name \x01")
    return tree


def tar(words: list[str], around: Path, locale: str) -> bytes:
    environment = {**os.environ, "LC_ALL": locale}
    return subprocess.run(["tar", *words], cwd=around, env=environment, check=True, capture_output=True).stdout


def printed(words: list[str], around: Path, locale: str) -> bytes:
    run = ptar(*words, cwd=around, env={"LC_ALL": locale}, real=True)
    assert run.returncode == 0, show(run)
    return run.stdout


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
def test_odd_names_are_printed_as_by_tar(tree: bytes, tmp_path: Path, locale: str) -> None:
    created = tar(["--sort=name", "--format=pax", "-cvf", "theirs.tar", "tree"], tmp_path, locale)
    for words in (["-tf"], ["-tvf"]):
        assert printed([*words, "theirs.tar"], tmp_path, locale) == tar([*words, "theirs.tar"], tmp_path, locale)
    assert sorted(printed(["-cvf", "ours.tar", "tree"], tmp_path, locale).splitlines()) == sorted(created.splitlines())
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    unpacked = printed(["-xvf", "theirs.tar", "-C", "one"], tmp_path, locale)
    theirs = tar(["-xvf", "theirs.tar", "-C", "other"], tmp_path, locale)
    assert sorted(unpacked.splitlines()) == sorted(theirs.splitlines())


def test_characters_that_act_on_a_terminal_are_escaped(tmp_path: Path) -> None:
    """tar prints these as they are. The escapes have tar's form, so that its ``--unquote`` restores the names."""
    for name in HIDDEN:
        (tmp_path / name).touch()
    subprocess.run(["tar", "--sort=name", "-cf", "a.tar", *sorted(HIDDEN)], cwd=tmp_path, check=True)
    lines = printed(["-tf", "a.tar"], tmp_path, "C.UTF-8").decode("ascii").splitlines()
    assert lines == [
        r"\302\240 space",
        r"\342\200\213 width",
        r"\342\200\250 separator",
        r"\342\200\256 direction",
    ]
    (tmp_path / "listed").write_text("\n".join(lines) + "\n")
    words = ["tar", "--unquote", "-T", "listed", "-cf", "again.tar"]
    subprocess.run(words, cwd=tmp_path, check=True)
    subprocess.run(["tar", "-df", "again.tar"], cwd=tmp_path, check=True)


AS_ALIAS = "import sys; sys.argv[0] = '/usr/bin/pcopy-tar'; from pcopy.cli.script import ptar; ptar()"


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["--help"], 0),
        (["-h"], 0),
        (["--version"], 0),
        ([], 2),
        (["-c"], 2),
        (["-cf", "a.tar"], 2),
        (["-cf", "a.tar", "absent"], 2),
        (["-cf", "a.tar.xz", "file"], 2),
        (["-cf", "-", "file"], 2),
        (["-O", "-xf", "a.tar"], 2),
        (["--nonsense"], 2),
        (["-n", "x", "-cf", "a.tar", "file"], 2),
        (["-tf", "absent.tar"], 2),
        (["-tf", "damaged.tar"], 1),
        (["-xf", "damaged.tar", "-C", "there"], 1),
        (["-cvvf", "a.tar", "file"], 0),
        (["-cf", "/dev/null", "file"], 2),
    ],
)
def test_alias_names_itself(words: list[str], status: int, tmp_path: Path) -> None:
    """Started as pcopy-tar, the program never calls itself ptar: Perl has another program of that name."""
    (tmp_path / "file").write_bytes(b"contents")
    (tmp_path / "there").mkdir()
    subprocess.run(["tar", "-cf", "damaged.tar", "file"], cwd=tmp_path, check=True)
    os.truncate(tmp_path / "damaged.tar", 700)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", AS_ALIAS, *words]
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    text = run.stdout + run.stderr
    assert run.returncode == status, text
    assert "pcopy-tar" in text
    lines = [line for line in text.splitlines() if "installed as" not in line]
    assert not [line for line in lines if "ptar" in line], text
