"""Each program reads each kind of list by the same rules (docs/operations/suite.md, "Lists of paths").

The expected items come from rsync, tar, rm, chmod and find, which get the same list. Where a program differs from them
on purpose, the expected items are literal.
"""

from __future__ import annotations

import base64
import codecs
import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from tests.support.command import Argument, Completed, pcopy

PROGRAMS = ("pcopy", "ptar -c", "ptar -x", "ptar -t", "prm", "pchmod", "pwalk")
IN_FILE_SYSTEM = ("pcopy", "ptar -c", "prm", "pchmod", "pwalk")
"""Programs whose lists name items of the file system, and not members of an archive."""

Items = frozenset[bytes]


class Outcome(NamedTuple):
    """The exit status, the items that were processed, and a part of the message (empty: no message is expected)."""

    status: int
    items: Items
    message: str = ""


class Situation(NamedTuple):
    """A list, and what the programs do with it.

    Fields:
    - ``text``: the list; AREA in it stands for the directory of the test. None: the list is made by ``prepare``.
    - ``expected``: outcomes by program. Other programs do as the programs that they replace, with the same status.
    - ``entries``: the paths that these get, if they cannot read the list.
    - ``message``: what these report if an item fails, by program.
    - ``prepare``: creates the list; ``is_piped``: the list is standard input; ``names``: further files in the tree.
    """

    text: bytes | None
    expected: Mapping[str, Outcome] = MappingProxyType({})
    nul: bool = False
    entries: Sequence[bytes] | None = None
    prepare: Callable[[Path], None] | None = None
    is_piped: bool = False
    names: Sequence[bytes] = ()
    message: Mapping[str, str] = MappingProxyType({})


def refused(message: str, programs: Sequence[str] = PROGRAMS) -> dict[str, Outcome]:
    return dict.fromkeys(programs, Outcome(2, frozenset(), f"--from LIST: {message}"))


def outcome(status: int, *items: bytes, message: str = "") -> Outcome:
    return Outcome(status, frozenset(items), message)


NO_MEMBER = "has no members with these names: "
"""What ``ptar -x`` and ``ptar -t`` report for a name that no member has."""


def members(name: str) -> dict[str, str]:
    return dict.fromkeys(("ptar -x", "ptar -t"), f"{NO_MEMBER}{name}")


def saved_listing(area: Path) -> None:
    lines: list[dict[str, object]] = [{"format": "pcopy listing", "version": 1}]
    lines[0]["directory_b64"] = base64.b64encode(bytes(area / "tree")).decode()
    for name in ("file", "d/g"):
        status = (area / "tree" / name).stat()
        lines.append({"path": name, "type": "file", "inode": status.st_ino, "size": status.st_size})
    (area / "list").write_text("".join(json.dumps(line) + "\n" for line in lines))


LINK = "link: stat: is a symbolic link; leave out the slash, or list what it leads to"
THROUGH = "link is a symbolic link; list what it leads to"
NO_ITEM = "none: stat: No such file or directory"
OUTSIDE = "does not lie in tree; list paths below it"
UPWARDS = "leads upwards; write the path without .. after a name"
NUL_IN_LINE = r"line 1: file\x00d/g\x00 holds a NUL; write -0 if paths end with one"

ALL_ITEMS = frozenset(
    (b"file", b"d", b"d/g", b"d/e", b"d/e/h", b"real", b"real/r", b"new\nline", b"\xff", b"cr\r", b"link")
)

NAMES_LIKE_FORMATS = (
    *(
        b"PAR1",
        b"PAR1x",
        b"path,path_b64,type",
        b"[1]",
        b"{}",
        b'{"path": 1}',
        b"\x1f\x8b\x08x",
        b"!<arch>",
        b"\xef\xbb\xbf#",
    ),
    *(b'{"format": "pcopy listing"', b'{"format": "pcopy listing", "version": 1}', b'{"format": "pcopy listing"\nx'),
)
"""Names of files with which files of other formats and saved listings begin."""

SITUATIONS = {
    **{
        f"NUL, first {name!r}": Situation(name + b"\0file\0d/g\0", nul=True, names=[name])
        for name in NAMES_LIKE_FORMATS
    },
    "lines": Situation(b"file\nd/g\n"),
    "no newline at the end": Situation(b"file\nd/g"),
    "empty lines": Situation(b"\n\nfile\n\n", entries=[b"file"]),
    "NUL": Situation(b"file\0new\nline\0", nul=True),
    "no NUL at the end": Situation(b"file\0d/g", nul=True),
    "standard input": Situation(b"file\nd/g\n", is_piped=True),
    "NUL on standard input": Situation(b"file\0new\nline\0", nul=True, is_piped=True),
    "saved listing": Situation(None, prepare=saved_listing, entries=[b"file", b"d/g"]),
    "CR LF": Situation(
        b"file\r\nd/g\r\n",
        {
            "pcopy": outcome(0, b"file", b"d", b"d/g"),
            "ptar -c": outcome(0, b"file", b"d/g"),
            "pwalk": outcome(0, b"file", b"d/g"),
            **refused("line 1: file\\r does not exist, file exists: if lines end as", ("prm", "pchmod")),
        },
        message=members("file\\r, d/g\\r; if the list has line ends of Windows, remove them"),
    ),
    "an empty line with CR": Situation(
        b"\r\nfile\n",
        dict.fromkeys(("ptar -x", "ptar -t"), outcome(1, b"file", message=f"{NO_MEMBER}\\r")),
        entries=[b"file"],
    ),
    "name with CR": Situation(b"cr\r\n"),
    "names that are not UTF-8": Situation(b"\xff\n"),
    "lines with NUL": Situation(b"file\0d/g\0", refused(NUL_IN_LINE)),
    "newline at the end with -0": Situation(
        b"file\nd/g\n", refused("line 1: ends with a newline, not with a NUL; leave out -0 if each"), nul=True
    ),
    "saved listing with -0": Situation(None, nul=True, prepare=saved_listing, entries=[b"file", b"d/g"]),
    "no path": Situation(
        b"",
        {
            **refused("lists nothing, so there is nothing to do", ("pcopy", "ptar -c", "ptar -x", "ptar -t")),
            **dict.fromkeys(("prm", "pchmod", "pwalk"), outcome(0)),
        },
    ),
    "no list": Situation(None, refused("does not exist; ")),
    "a directory as list": Situation(
        None,
        refused("is a directory; name a file that lists paths, or - to read them"),
        prepare=lambda area: (area / "list").mkdir(),
    ),
    "a path twice": Situation(b"file\n./file\nfile\n", entries=[b"file"]),
    "a directory": Situation(
        b"d\n",
        {"pwalk": outcome(0, b"d"), "pchmod": outcome(0, b"d")},
        message={"prm": "d: rmdir: Directory not empty"},
    ),
    "a directory and a slash": Situation(b"d/\n", message={"prm": "d: rmdir: Directory not empty"}),
    "a directory and items in it": Situation(
        b"d\nd/g\nd/e/h\nd/e\n",
        # tar reports d/g as not found, since it has taken it with d.
        dict.fromkeys(("ptar -x", "ptar -t"), outcome(0, b"d", b"d/g", b"d/e", b"d/e/h")),
    ),
    "an absolute path in the directory": Situation(
        b"AREA/tree/file\n",
        {
            "pcopy": outcome(0, b"file"),
            "ptar -c": outcome(0, b"file"),
            **dict.fromkeys(("ptar -x", "ptar -t"), outcome(1, message=NO_MEMBER)),
        },
    ),
    "an absolute path outside": Situation(
        b"file\nAREA/other\n", refused(f"line 2: AREA/other {OUTSIDE}", IN_FILE_SYSTEM), message=members("AREA/other")
    ),
    "a path upwards": Situation(
        b"file\n../other\n", refused(f"line 2: ../other {OUTSIDE}", IN_FILE_SYSTEM), message=members("../other")
    ),
    "a path upwards and back": Situation(
        b"../tree/file\n",
        {
            "pcopy": outcome(0, b"file"),
            "ptar -c": outcome(0, b"file"),
            **dict.fromkeys(("ptar -x", "ptar -t"), outcome(1, message=f"{NO_MEMBER}../tree/file")),
        },
    ),
    "a path upwards after a name": Situation(
        b"d/../file\n", refused(f"line 1: d/../file {UPWARDS}", IN_FILE_SYSTEM), message=members("d/../file")
    ),
    "a path from the working directory": Situation(
        b"tree/file\n",
        refused("line 1: tree/file is not in tree, but starts in the working directory: write file, ", IN_FILE_SYSTEM),
        message=members("tree/file"),
    ),
    "the directory itself": Situation(
        b".\n",
        {
            **refused("line 1: . is tree itself; list what is in it", ("prm", "pchmod")),
            # The names of the members do not begin with ./ here, so tar finds none.
            **dict.fromkeys(("ptar -x", "ptar -t"), Outcome(0, ALL_ITEMS)),
        },
    ),
    "an absent item": Situation(b"none\nfile\n", message={**dict.fromkeys(IN_FILE_SYSTEM, NO_ITEM), **members("none")}),
    "a long name": Situation(
        b"x" * 256 + b"\nfile\n",
        message={**dict.fromkeys(IN_FILE_SYSTEM, "xxx: stat: File name too long"), **members("xxx")},
    ),
    "a line that is no path": Situation(
        b"file\n" + b"x" * (2 << 20), refused("line 2: is longer than any path; write -0")
    ),
    "a symbolic link": Situation(b"link\n", {"pchmod": outcome(0)}),
    "a symbolic link and a slash": Situation(
        b"link/\n",
        {
            "pcopy": outcome(0, b"link"),
            **dict.fromkeys(("prm", "pchmod"), outcome(1, message=LINK)),
            "pwalk": outcome(0, b"link"),
        },
    ),
    "a file and a slash": Situation(
        b"file/\nd/g\n",
        {
            **dict.fromkeys(("prm", "pchmod"), outcome(1, b"d/g", message="file: stat: is not a directory; leave out")),
            "pwalk": outcome(0, b"file", b"d/g"),
        },
    ),
    "a path through a symbolic link": Situation(
        b"link/r\nfile\n",
        {
            "pcopy": outcome(1, b"file", message="link is a symbolic link, which only -L follows"),
            "ptar -c": outcome(1, b"file", message=THROUGH),
            "prm": outcome(1, b"file", message=THROUGH),
            "pchmod": outcome(1, b"file", message=THROUGH),
        },
        message=members("link/r"),
    ),
    "a path through a file": Situation(
        b"file/x\nd/g\n",
        message={
            **dict.fromkeys(("pcopy", "ptar -c", "prm", "pchmod"), "file/x: open: Not a directory"),
            "pwalk": "file/x: stat: Not a directory",
            **members("file/x"),
        },
    ),
}


def found(directory: Argument, form: str = "%P") -> Items:
    """Return the items in a directory, as find(1) prints them."""
    run = subprocess.run(
        ["find", directory, "-mindepth", "1", "-printf", f"{form}\\0"], check=True, capture_output=True
    )
    return frozenset(run.stdout.split(b"\0")[:-1])


def unescaped(lines: bytes) -> Items:
    """Return the names that tar or ptar has listed, without ``./`` and a slash at the end."""
    names = (codecs.escape_decode(line)[0] for line in lines.splitlines())
    return frozenset(bytes(name).removeprefix(b"./").rstrip(b"/") for name in names)


def walked(area: Path, output: bytes) -> Items:
    """Return the paths below the tree that pwalk or find has printed, each followed by a NUL."""
    tree, top = bytes(area / "tree"), bytes(area)
    printed = (os.path.join(top, path).replace(b"/alias/", b"/tree/") for path in output.split(b"\0")[:-1])
    paths = (os.path.relpath(path, tree) for path in printed)
    return frozenset(b"" if path == b"." else path for path in paths)


def run_program(
    area: Path, program: str, situation: Situation, base: str = "tree", *options: str
) -> tuple[int, Items, bytes]:
    """Run the program with the list; return the exit status, the items that it has processed, and the errors.

    ``base`` is the directory in which the listed items are.
    """
    source = "-" if situation.is_piped else "list"
    words: list[Argument] = [*options, "-0"] if situation.nul else [*options]
    words += ["--from", source]
    arguments: dict[str, list[Argument]] = {
        "pcopy": [*words, f"{base}/", "copy"],
        "ptar -c": ["-c", "-f", "new.tar", "-C", base, *words],
        "ptar -x": ["-x", "-f", "all.tar", "-C", "copy", *words],
        "ptar -t": ["-t", "-f", "all.tar", *words],
        "prm": ["--yes", *words, base],
        "pchmod": [*words, "0700", base],
        "pwalk": [*words, base, "-print0"],
    }
    before = found(area / "tree", "%P %m")
    wrap = ("sh", "-c", 'exec "$@" < list', "sh") if situation.is_piped else ()
    done = pcopy(*arguments[program], program=program.split(maxsplit=1)[0], cwd=area, ranks=1, wrap=wrap)
    return done.returncode, result(area, program, before, done), done.stderr


def run_oracle(area: Path, program: str, situation: Situation) -> tuple[int, Items]:
    """Do the same with rsync, tar, rm, chmod or find. Return 0 or 1, and the items."""
    entries = situation.entries
    if entries is None:
        assert situation.text is not None
        entries = situation.text.replace(b"AREA", bytes(area)).split(b"\0" if situation.nul else b"\n")
    listed = b"".join(entry + b"\0" for entry in entries if entry)
    below = b"".join(os.path.join(b"tree", entry) + b"\0" for entry in sorted(entries, reverse=True) if entry)
    commands: dict[str, tuple[list[str], bytes]] = {
        "pcopy": (["rsync", "-ar", "--from0", "--files-from=-", "tree/", "copy/"], listed),
        "ptar -c": (["tar", "-c", "-f", "new.tar", "-C", "tree", "--null", "--verbatim-files-from", "-T", "-"], listed),
        "ptar -x": (["tar", "-x", "-f", "all.tar", "-C", "copy", "--null", "--verbatim-files-from", "-T", "-"], listed),
        "ptar -t": (["tar", "-t", "--quoting-style=escape", "-f", "all.tar", "--null", "-T", "-"], listed),
        "prm": (["xargs", "-0", "rm", "-d"], below),
        "pchmod": (["xargs", "-0", "chmod", "0700"], below),
        "pwalk": (["xargs", "-0", "sh", "-c", 'find "$@" -maxdepth 0 -print0', "sh"], below),
    }
    command, given = commands[program]
    before = found(area / "tree", "%P %m")
    done = subprocess.run(command, input=given, cwd=area, check=False, capture_output=True)
    return min(done.returncode, 1), result(area, program, before, done)


def result(area: Path, program: str, before: Items, done: Completed) -> Items:
    """Return the items that a program, or the one that it replaces, has processed. ``before`` was the tree."""
    after = found(area / "tree", "%P %m")
    if program in ("pcopy", "ptar -x"):
        return found(area / "copy") if (area / "copy").exists() else frozenset()
    if program == "ptar -t":
        return unescaped(done.stdout)
    if program == "ptar -c":
        if not (area / "new.tar").exists():
            return frozenset()
        command = ["tar", "-t", "--quoting-style=escape", "-f", "new.tar"]
        return unescaped(subprocess.run(command, cwd=area, check=True, capture_output=True).stdout)
    if program == "pwalk":
        return walked(area, done.stdout)
    changed = after - before if program == "pchmod" else before - after
    names = frozenset(entry.rpartition(b" ")[0] for entry in changed)
    # The mode of a directory is part of its line, too: what prm has removed is in no line.
    return names if program == "pchmod" else names - {entry.rpartition(b" ")[0] for entry in after}


def prepare(area: Path, program: str, situation: Situation) -> None:
    """Create the tree, the archive of it, and the list."""
    tree = area / "tree"
    for name in (b"file", b"d/g", b"d/e/h", b"real/r", b"new\nline", b"\xff", b"cr\r", *situation.names):
        path = os.path.join(bytes(tree), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(name)
    (tree / "link").symlink_to("real")
    (area / "other").touch()
    if program in ("ptar -x", "ptar -t"):
        subprocess.run("cd tree && tar -cf ../all.tar *", shell=True, cwd=area, check=True)
    if program == "ptar -x":
        (area / "copy").mkdir()
    if situation.prepare:
        situation.prepare(area)
    elif situation.text is not None:
        (area / "list").write_bytes(situation.text.replace(b"AREA", bytes(area)))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("name", SITUATIONS)
def test_list_is_read_by_the_same_rules_in_all_programs(area: Path, name: str, program: str) -> None:
    situation = SITUATIONS[name]
    for each in ("ours", "theirs"):
        (area / each).mkdir()
        prepare(area / each, program, situation)
    status, items, errors = run_program(area / "ours", program, situation)
    expected = situation.expected.get(program)
    if expected is None:
        expected = Outcome(*run_oracle(area / "theirs", program, situation), situation.message.get(program, ""))
    shown = f"{name}, {program}: {os.fsdecode(errors)}"
    assert (status, items) == expected[:2], shown
    directory = str(area / "ours")
    list_name = "standard input" if situation.is_piped else f"{directory}/list" if program == "pcopy" else "list"
    message = expected.message.replace("AREA", directory).replace("LIST", list_name)
    assert message in os.fsdecode(errors), shown
    assert bool(errors) == (status != 0), shown
    if status == 2:
        assert errors.count(b"\n") == 1, shown


@pytest.mark.parametrize("program", IN_FILE_SYSTEM)
def test_directory_of_the_list_may_have_two_paths(area: Path, program: str) -> None:
    """Listed absolute paths begin with the path that the user has given, or with the one without symbolic links."""
    situation = Situation(b"AREA/alias/file\nAREA/tree/new\nAREA/alias/./d//g\n")
    prepare(area, program, situation)
    (area / "alias").symlink_to("tree")
    (area / "tree/new").touch()
    status, items, errors = run_program(area, program, situation, base="alias")
    expected = frozenset((b"file", b"new", b"d/g", *([b"d"] if program == "pcopy" else [])))
    assert (status, items) == (0, expected), os.fsdecode(errors)


@pytest.mark.parametrize("text", [b"link\n", b"link/\n", b"link/r\n"])
def test_links_are_followed_as_by_rsync(area: Path, text: bytes) -> None:
    situation = Situation(text)
    prepare(area, "pcopy", situation)
    status, items, errors = run_program(area, "pcopy", situation, "tree", "-L")
    subprocess.run(["rsync", "-arL", "--files-from=list", "tree/", "theirs/"], cwd=area, check=True)
    assert (status, items) == (0, found(area / "theirs")), os.fsdecode(errors)


def test_path_upwards_after_a_name_is_listed_without_a_directory(area: Path) -> None:
    """As by find: pwalk lists what the user may list, if no directory is given in which the paths must be."""
    (area / "d").mkdir()
    (area / "list").write_bytes(b"d/../list\n")
    run = pcopy("--from", "list", program="pwalk", cwd=area, ranks=1)
    assert (run.returncode, run.stdout) == (0, b"d/../list\n")


@pytest.mark.parametrize("program", ["pcopy", "ptar -c", "ptar -x", "ptar -t"])
def test_working_directory_is_not_needed(area: Path, program: str) -> None:
    """It may have been removed, if all paths of the command line are absolute."""
    situation = Situation(b"file\n")
    prepare(area, program, situation)
    (area / "removed").mkdir()
    words: dict[str, list[Argument]] = {
        "pcopy": [f"{area}/tree/", area / "copy"],
        "ptar -c": ["-c", "-f", area / "new.tar", "-C", area / "tree"],
        "ptar -x": ["-x", "-f", area / "all.tar", "-C", area / "copy"],
        "ptar -t": ["-t", "-f", area / "all.tar"],
    }
    wrap = ("sh", "-c", 'cd removed && rmdir ../removed && exec "$@"', "sh")
    run = pcopy(
        *words[program], "--from", area / "list", program=program.partition(" ")[0], cwd=area, ranks=1, wrap=wrap
    )
    items = result(area, program, frozenset(), run)
    assert (run.returncode, items, run.stderr) == (0, frozenset((b"file",)), b"")
