"""Patterns select the same files as git: git itself is asked which files it does not ignore."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pcopy.walk.patterns import checked_option_pattern, patterns_in_file
from pcopy.walk.selection import ItemFilters, ItemSelector

NAMES = (b"a", b"b", b"foo", b"a.o", b".x", b"#c", b"!d", b"e f", b"g ", b"\xff\xc3", b"n\nl", b"[k]", b"back\\")
MORE = (b"A", b"Foo", b"k]", b"t\t", b"r\r", b"f0o", b"f-o", b"h", b"\xc3\xa0", b"-", b"\x0b", b"**")
"""Names that exist in one directory only, because more would take too long."""
PARTS = (
    *(b"*", b"**", b"?", b"foo", b"a", b"b", b"*.o", b".*", b"[a-f]", b"[!a]*", b"e f", b"\\#c", b"\\!d", b"*\xff*"),
    *(b"***", b"*\\]", b"k]", b"\\*\\*", b"\xc3\xa0", b"A", b"h", b"t\t", b"r\r", b"f?o", b"\\f*", b"back\\\\"),
)
IN_BRACKETS = (
    b"a",
    b"a-f",
    b"f-a",
    b"A-Z",
    b" -9",
    b"-",
    b"]",
    b"[",
    b"\\]",
    b"\\-",
    b"\\\\",
    b"/",
    b"!",
    b"^",
    b"\xc3-\xff",
)
CLASSES = ("alnum", "alpha", "blank", "cntrl", "digit", "graph", "lower", "print", "punct", "space", "upper", "xdigit")


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three levels of directories with all names, as files and as directories."""
    root = tmp_path_factory.mktemp("tree")
    subprocess.run(["git", "init", "-q", root], check=True)
    for first in NAMES[:6]:
        for second in NAMES[:7]:
            directory = bytes(root) + b"/" + first + b"/" + second
            os.makedirs(directory + b"/foo")
            for name in NAMES:
                if name != b"foo":
                    Path((directory + b"/" + name).decode(errors="surrogateescape")).touch()
            Path((directory + b"/foo/" + first).decode(errors="surrogateescape")).touch()
    for name in NAMES[6:] + MORE:
        Path((bytes(root) + b"/" + name).decode(errors="surrogateescape")).touch()
        Path((bytes(root) + b"/a/b/" + name).decode(errors="surrogateescape")).touch()
    return root


def chosen_by_git(tree: Path, lines: list[bytes], scratch: Path) -> set[bytes]:
    (scratch / "patterns").write_bytes(b"\n".join(lines) + b"\n")
    command: list[str | Path] = [
        "git",
        "-C",
        tree,
        "ls-files",
        "-z",
        "--others",
        f"--exclude-from={scratch / 'patterns'}",
    ]
    listed = subprocess.run(command, check=True, capture_output=True).stdout
    return {*listed.split(b"\0")} - {b""}


def chosen(tree: Path, lines: list[bytes]) -> set[bytes]:
    """Return the selected paths, found by a walk that does not enter excluded directories."""
    selection = ItemSelector(ItemFilters(tuple(lines)))
    found: set[bytes] = set()

    def enter(below: bytes) -> None:
        for entry in Path((bytes(tree) + b"/" + below).decode(errors="surrogateescape")).iterdir():
            path = below + bytes(entry).rpartition(b"/")[2]
            status = entry.lstat()
            if path != b".git" and selection.selects_item_at_path(
                path, status.st_mode, status.st_size, status.st_mtime_ns
            ):
                enter(path + b"/") if stat.S_ISDIR(status.st_mode) else found.add(path)

    enter(b"")
    return found


def are_same(tree: Path, lines: list[bytes], scratch: Path) -> None:
    patterns = [pattern for _, pattern in patterns_in_file(b"\n".join(lines))]
    assert chosen(tree, patterns) == chosen_by_git(tree, lines, scratch), lines


BRACKET = st.builds(
    lambda sign, items: b"[" + sign + b"".join(items) + b"]",
    st.sampled_from((b"", b"!", b"^")),
    st.lists(
        st.sampled_from(IN_BRACKETS + tuple(b"[:%b:]" % name.encode() for name in CLASSES)), min_size=1, max_size=4
    ),
)
PART = st.one_of(
    st.sampled_from(PARTS),
    st.sampled_from(PARTS),
    st.builds(
        lambda *parts: b"".join(parts), st.sampled_from((b"", b"*", b"f", b"?")), BRACKET, st.sampled_from(PARTS)
    ),
    BRACKET,
)
LINE = st.builds(
    lambda sign, anchor, parts, end, blanks: sign + anchor + b"/".join(parts) + end + blanks,
    st.sampled_from((b"", b"", b"!")),
    st.sampled_from((b"", b"", b"/")),
    st.lists(PART, min_size=1, max_size=3),
    st.sampled_from((b"", b"", b"/", b"/*", b"/**", b"/***")),
    st.sampled_from((b"", b"", b"", b" ", b"  ", b"\t", b"\r", b" \r", b"\\ ", b"\\", b"[")),
)


def accepted(line: bytes) -> bool:
    try:
        return bool([*patterns_in_file(line)])
    except ValueError:
        return False


@given(lines=st.lists(LINE, min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_patterns_select_like_git(tree: Path, tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]) -> None:
    """Refused patterns match nothing in git, either."""
    scratch = tmp_path_factory.getbasetemp()
    refused = [line for line in lines if not accepted(line)]
    assert chosen(tree, []) == chosen_by_git(tree, refused, scratch), refused
    are_same(tree, [line for line in lines if line not in refused], scratch)


@pytest.mark.parametrize("negated", ["", "!", "^"])
def test_character_classes_match_those_of_git(tmp_path: Path, negated: str) -> None:
    """Tested with each byte that may occur in a name."""
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    for byte in {*range(1, 256)} - {ord("/")}:
        os.close(os.open(bytes(tmp_path) + b"/n%c" % byte, os.O_CREAT))
    for name in CLASSES:
        line = f"n[{negated}[:{name}:]]".encode()
        expected = chosen_by_git(tmp_path, [line], tmp_path / ".git")
        assert chosen(tmp_path, [line]) == expected and 0 < len(expected) < 254, name


@pytest.mark.parametrize(
    "lines",
    [
        [b"*", b"!*/", b"!*.o"],
        [b"*/", b"!*.o"],
        [b"foo/**", b"!foo/a"],
        [b"/a/**/foo"],
        [b"/foo"],
        [b"a/b"],
        [b"**/b/foo/"],
        [b"n?l"],
        [b"g\\ "],
        [b"*", b"!/a", b"!/a/b", b"!/a/b/**"],
        [b"**"],
        [b"[[]k]"],
        [b"back\\\\"],
        [b"back\\\\ "],
        [b"*\t"],
        [b"*\\ "],
        [b"*\xa0"],
        [b"[[:upper:]]*"],
        [b"k[\\]]", b"[^\\]]"],
        [b"a[!0-9]b", b"a[ -9]foo"],
        [b"[!/]oo"],
        [b"*[]-]*"],
        [b"/***/?*"],
        [b"***/foo", b"\\*\\*"],
    ],
)
def test_special_patterns_select_like_git(tree: Path, tmp_path: Path, lines: list[bytes]) -> None:
    are_same(tree, lines, tmp_path)


def test_command_line_patterns_have_no_comments_and_keep_blanks() -> None:
    selection = ItemSelector(
        ItemFilters(
            (checked_option_pattern(b"#*#"), checked_option_pattern(b"end "), checked_option_pattern(b"n\xc3\xa9"))
        )
    )
    assert (
        selection.excludes_path(b"d/#x#")
        and selection.excludes_path(b"end ")
        and selection.excludes_path(b"n\xc3\xa9/")
    )
    assert not (selection.excludes_path(b"end") or selection.excludes_path(b"x#"))


def test_lines_of_a_file() -> None:
    contents = b"\xef\xbb\xbf*.o\r\n\n# comment\n!keep.o\n\\#x"
    assert [*patterns_in_file(contents)] == [(1, b"*.o"), (4, b"!keep.o"), (5, b"\\#x")]


@pytest.mark.parametrize("pattern", [b"", b"/", b"!", b"- *.o", b"+ */", b" "])
def test_pattern_that_can_match_nothing_is_refused(pattern: bytes) -> None:
    with pytest.raises(ValueError, match=r"match anything|rsync"):
        checked_option_pattern(pattern)
    if pattern.strip():
        with pytest.raises(ValueError, match="line 2"):
            list(patterns_in_file(b"a\n" + pattern))


def test_a_path_is_excluded_below_an_excluded_directory() -> None:
    selection = ItemSelector(ItemFilters((b"a/", b"!a/b")))
    assert (
        selection.excludes_path_or_ancestor(b"a/b")
        and selection.excludes_path_or_ancestor(b"a/c/d/")
        and not selection.excludes_path_or_ancestor(b"a")
    )


def test_without_name_patterns_parent_directories_are_not_examined() -> None:
    path = b"/".join(b"d%d" % level for level in range(2000))
    selection = ItemSelector(ItemFilters(larger_than=1))
    began = time.process_time()
    assert not any(selection.excludes_path_or_ancestor(path) for _ in range(1000))
    assert time.process_time() - began < 1  # examining each parent directory would take many seconds


def test_names_are_compared_without_a_search_of_the_whole_path() -> None:
    """A directory of a chain of 20,000 directories is examined, and whether one above it is excluded."""
    path = b"/".join([b"d"] * 20_000) + b"/"
    selection = ItemSelector(ItemFilters((b"*.o", b"!keep*", b"/top/x", b"[a-c]*")))
    began = time.process_time()
    assert not any(selection.excludes_path(path) for _ in range(20_000))
    assert not selection.excludes_path_or_ancestor(path)
    assert time.process_time() - began < 3  # to search each path would take longer than a minute
    assert selection.excludes_path_or_ancestor(b"d/" * 9_000 + b"b/" + path)
