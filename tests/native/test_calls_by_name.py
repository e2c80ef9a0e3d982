"""Each call of the C sources that changes an item which it names is in the table of docs/design/backend.md.

The table is compared call by call: a call that is added, moved to another function or given other arguments needs a
row that states the check on which it rests.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "pcopy/fsio/backend/native"

METADATA = re.compile(
    r"(SYS_)?(fchmodat2?|fchownat|utimensat|futimesat|l?chmod|l?chown|utimes?|l?(set|remove)xattr(at)?)"
)
NAMES = re.compile(
    r"(SYS_)?(unlinkat|unlink|rmdir|renameat2?|rename|linkat|link|symlinkat|symlink|mkdirat|mkdir|mknodat|mknod)"
)
MAKES = re.compile(r"(SYS_)?(openat2?|open)")
FUNCTION = re.compile(r"^(?!struct|union|enum|typedef|#|\s|\}).*?\b(\w+)\((?:[^;{}]*)\)\n\{\n(.*?)^\}", re.M | re.S)
COMMENT_OR_TEXT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', re.S)
ROW = re.compile(r"^\| `(\w+\.[ch]): (\w+)` \| `([^`]+)` \| ([^|]+) \| (name|descriptor) \| ([^|]+) \|$", re.M)


class Call(NamedTuple):
    """A call expression, with single spaces, and the function it is in ("" outside of functions)."""

    file: str
    function: str
    text: str


class Row(NamedTuple):
    """A row of the table."""

    call: Call
    check: str
    by: str
    reason: str


def arguments_of(text: str) -> list[str]:
    """Return the arguments of a call, split at the commas that are not within inner parentheses."""
    inside, depth, arguments = text[text.index("(") + 1 : -1], 0, [""]
    for letter in inside:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            arguments.append("")
        else:
            arguments[-1] += letter
    return [argument.strip() for argument in arguments]


def is_change(text: str) -> bool:
    """Return True if the call changes the item that its arguments name, or makes one."""
    name, arguments = text.partition("(")[0], arguments_of(text)
    if name == "syscall":
        name, arguments = arguments[0], arguments[1:]
    if METADATA.fullmatch(name) or NAMES.fullmatch(name):
        return True
    return bool(MAKES.fullmatch(name)) and any(
        re.search(r"mode|MODE|\b0[0-7]{3}\b|O_CREAT|O_TRUNC", word) for word in arguments
    )


def without_comments(source: str) -> str:
    return COMMENT_OR_TEXT.sub(lambda match: match[0] if match[0].startswith('"') else " ", source)


def calls_within(code: str) -> Iterator[str]:
    """Yield each call expression of ``code``, also those within others, with single spaces."""
    for match in re.finditer(r"\b\w+\(", code):
        depth, end = 1, match.end()
        while depth and end < len(code):
            depth += (code[end] == "(") - (code[end] == ")")
            end += 1
        yield " ".join(code[match.start() : end].split())


def changes(file: str, source: str) -> Counter[Call]:
    code = without_comments(source)
    found: Counter[Call] = Counter()
    for match in FUNCTION.finditer(code):
        found.update(Call(file, match[1], text) for text in calls_within(match[2]) if is_change(text))
    outside = FUNCTION.sub("", code)
    found.update(Call(file, "", text) for text in calls_within(outside) if is_change(text))
    return found


def table() -> list[Row]:
    page = (ROOT / "docs/design/backend.md").read_text()
    return [
        Row(Call(file, function, call.replace("\\|", "|")), check, by, reason)
        for file, function, call, check, by, reason in ROW.findall(page)
    ]


def in_sources() -> Counter[Call]:
    return sum((changes(path.name, path.read_text()) for path in sorted(SOURCES.glob("*.[ch]"))), Counter[Call]())


def test_every_call_that_changes_a_named_item_has_a_table_row() -> None:
    found = in_sources()
    assert found, "the sources are not where they were"
    assert Counter(row.call for row in table()) == found


BELOW_PROC = (
    Call("metadata.c", "change_mode", "chmod(path, mode)"),
    Call("new_file.c", "pk_close_new", "utimensat(AT_FDCWD, path, times, 0)"),
)
"""Calls whose path is /proc/self/fd/N of a descriptor."""


def test_metadata_is_changed_through_descriptors_only() -> None:
    for row in table():
        name, arguments = row.call.text.partition("(")[0], arguments_of(row.call.text)
        if name == "syscall":
            name, arguments = arguments[0], arguments[1:]
        is_of_descriptor = '""' in arguments and "AT_EMPTY_PATH" in arguments[-1]
        assert (row.by == "descriptor") == (is_of_descriptor or row.call in BELOW_PROC), row
        assert row.by == "descriptor" or not METADATA.fullmatch(name), row


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("if (unlinkat(here,\n name, 0))", "unlinkat(here, name, 0)"),
        ("x = syscall(SYS_fchmodat2, here, name, mode, AT_SYMLINK_NOFOLLOW);", None),
        ("y = done(f, fchownat(at, of(name), 1, 2, 0));", "fchownat(at, of(name), 1, 2, 0)"),
        ("z = openat(at, name, FLAGS, 0600);", "openat(at, name, FLAGS, 0600)"),
        ("z = open(name, O_WRONLY | O_TRUNC);", "open(name, O_WRONLY | O_TRUNC)"),
    ],
)
def test_change_is_found_in_its_function(code: str, text: str | None) -> None:
    source = f"/* unlink(name) */\nstatic int act(int here,\n               int name)\n{{\n    {code}\n}}\n"
    expected = text or code[4:-1]
    assert changes("some.c", source) == Counter([Call("some.c", "act", expected)])


@pytest.mark.parametrize(
    "code", ["openat(at, name, READING);", "fchmod(file, mode);", "fstatat(at, name, &status, 0);"]
)
def test_call_that_changes_nothing_by_name_has_no_row(code: str) -> None:
    assert not changes("some.c", f"int act(void)\n{{\n    {code}\n}}\n")
