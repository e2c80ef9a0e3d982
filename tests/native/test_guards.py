"""Each flag and each comparison of identities in the C sources is a guard (``guards.h``), or has a reason here.

So a check that is added needs a row in tests/hostile/c_guards.py, which shows that it is necessary.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.native.test_calls_by_name import FUNCTION, SOURCES, without_comments

FLAG = re.compile(r"\b(?:O_NOFOLLOW|O_EXCL|O_NONBLOCK|O_DIRECTORY|O_NOCTTY|AT_SYMLINK_NOFOLLOW|AT_NO_AUTOMOUNT)\b")
OPERAND = r"[\w.>\[\]-]+(?:\(\))?"
COMPARISON = re.compile(rf"{OPERAND} [=!]= {OPERAND}|\bmemcmp\(mark\b")
IDENTITY = re.compile(r"\b(?:st_ino|st_dev|stx_ino|stx_mnt_id|stx_dev_major|st_nlink|geteuid|mark)\b")
SYNC = re.compile(r"\bf(?:data)?sync\(")
SPAN = re.compile(r"\b(?:GUARD|GUARD_FLAG|GUARD_VALUE|IS_DISABLED)\(")
SHOWN = "normal results would be wrong without it, which the tests of the programs show"
SLOW = "the slow path would process the item otherwise, with the same result"
AUTOMOUNT = "the status of an automount point does not mount it (tests/chaos/test_automounts.py)"
COMPARED = "the next comparison finds that the inode of a link is not that of its target"
ONLY_COMPARED = "names and sizes in another source are compared, and none of its data or metadata is used"
IN_ITS_OWN = "pdbench works in a directory that it has created, which other users may not enter"


class Check(NamedTuple):
    """A flag, a comparison or a sync, and the function it is in ("" outside of functions)."""

    file: str
    function: str
    text: str


REASONS = {
    Check("contents.c", "look", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("contents.c", "look", "AT_NO_AUTOMOUNT"): AUTOMOUNT,
    Check("copy.c", "synced", "fsync("): "its call depends on SYNC_BEFORE_NAME",
    Check("directories.c", "is_like_source", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("directories.c", "is_recorded", "source.st_ino != batch->wanted.inode[one->number]"): ONLY_COMPARED,
    Check("directories.c", "is_recorded", "source.st_dev != batch->tree->source_device"): ONLY_COMPARED,
    Check("directories.c", "is_recorded", "one->status.st_dev == batch->tree->target_device"): SLOW,
    Check("filter.c", "pk_excludes", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("items.c", "pk_look_at", "AT_NO_AUTOMOUNT"): AUTOMOUNT,
    Check("items.c", "pk_remove_row", "AT_SYMLINK_NOFOLLOW"): COMPARED,
    Check("items.c", "pk_stat_row", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("unpack.c", "is_simple", "status->st_dev == tree->target_device"): SLOW,
    Check("walk.c", "complete_types", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("walk_copy.c", "is_simple_target", "status->st_dev != tree->target_device"): SLOW,
    Check("walk_copy.c", "read_metadata", "status->st_dev == tree->shunned_device"): SHOWN,
    Check("walk_copy.c", "read_metadata", "status->st_ino == tree->shunned_inode"): SHOWN,
    Check("walk_change.c", "change_item", "AT_SYMLINK_NOFOLLOW"): COMPARED,
    Check("walk_change.c", "open_directory", "AT_SYMLINK_NOFOLLOW"): COMPARED,
    Check("walk_compare.c", "look_at_both", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("walk_compare.c", "look_at_row", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("walk_compare.c", "look_at_row", "AT_NO_AUTOMOUNT"): AUTOMOUNT,
    Check("walk_look.c", "look_at_items", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("metadata.c", "pk_update_uniform_row", "AT_SYMLINK_NOFOLLOW"): COMPARED,
    Check("new_file.c", "pk_mark", "AT_SYMLINK_NOFOLLOW"): "the call has a descriptor and no name",
    Check("walk_members.c", "describe", "status->st_dev != batch->tree->source_device"): SLOW,
    Check("walk_members.c", "describe_files", "AT_SYMLINK_NOFOLLOW"): SHOWN,
    Check("walk_members.c", "describe_files", "status.st_nlink != 1"): SHOWN,
    Check("walk_remove.c", "remove_directory", "AT_SYMLINK_NOFOLLOW"): COMPARED,
    Check("walk_remove.c", "remove_item", "AT_SYMLINK_NOFOLLOW"): COMPARED,
    Check("status.c", "", "AT_SYMLINK_NOFOLLOW"): "a mask of the flags that fstatat has, too",
    Check("status.c", "", "AT_NO_AUTOMOUNT"): "as above",
    Check("trial.c", "", "O_NOFOLLOW"): IN_ITS_OWN,
    Check("trial.c", "", "O_NONBLOCK"): IN_ITS_OWN,
    Check("trial.c", "pk_try_row", "AT_SYMLINK_NOFOLLOW"): IN_ITS_OWN,
    Check("trial.c", "pk_try_row", "O_EXCL"): IN_ITS_OWN,
}


def end_of_call(code: str, begin: int) -> int:
    """Return the end of the call whose parenthesis opens right before ``begin``."""
    depth = 1
    while depth and begin < len(code):
        depth += (code[begin] == "(") - (code[begin] == ")")
        begin += 1
    return begin


def guarded_spans(code: str) -> list[range]:
    """Return where the arguments of guards are. A guard that is disabled by ``IS_DISABLED`` extends to the end of its
    statement."""
    spans = []
    for match in SPAN.finditer(code):
        end = code.index(";", match.end()) if match[0].startswith("IS") else end_of_call(code, match.end())
        spans.append(range(match.start(), end))
    return spans


def checks_in(code: str) -> Iterator[tuple[int, str]]:
    """Yield the position and the text of each flag, comparison of identities, and sync."""
    for match in FLAG.finditer(code):
        yield match.start(), match[0]
    for match in SYNC.finditer(code):
        yield match.start(), match[0]
    for match in COMPARISON.finditer(code):
        if IDENTITY.search(match[0]):
            yield match.start(), match[0]


def functions_in(code: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the code of each function, and the rest with an empty name."""
    for match in FUNCTION.finditer(code):
        yield match[1], match[2]
    yield "", FUNCTION.sub("", code)


class Function(NamedTuple):
    """A function, and what stands outside of the guards in it: checks, and the names of called functions."""

    file: str
    name: str
    checks: list[str]
    calls: set[str]
    guarded_calls: set[str]


def function_of(file: str, name: str, code: str) -> Function:
    spans = guarded_spans(code)

    def is_guarded(at: int) -> bool:
        return any(at in span for span in spans)

    calls = [(is_guarded(match.start()), match[1]) for match in re.finditer(r"\b(\w+)\(", code)]
    return Function(
        *(file, name, [text for at, text in checks_in(code) if not is_guarded(at)]),
        *({called for guarded, called in calls if guarded is wanted} for wanted in (False, True)),
    )


def unguarded(files: dict[str, str]) -> Counter[Check]:
    """Return the checks that are no guards, and are in functions that are not only called as guards."""
    functions = [
        function_of(file, name, code)
        for file, source in files.items()
        if file != "guards.h"
        for name, code in functions_in(without_comments(source))
    ]
    ordinary = functions
    while True:
        remaining = [each for each in ordinary if not _is_only_called_by_guards(each, functions, ordinary)]
        if remaining == ordinary:
            return Counter(Check(each.file, each.name, text) for each in ordinary for text in each.checks)
        ordinary = remaining


def _is_only_called_by_guards(one: Function, functions: list[Function], ordinary: list[Function]) -> bool:
    """Functions of the same name in several files are static ones."""
    is_static = sum(each.name == one.name for each in functions) > 1
    callers = [each for each in functions if not is_static or each.file == one.file]
    is_called = any(one.name in each.guarded_calls | each.calls for each in callers)
    return is_called and not any(one.name in each.calls for each in callers if each in ordinary)


def sources() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(SOURCES.glob("*.[ch]"))}


def test_each_check_is_a_guard_or_has_a_reason() -> None:
    assert set(unguarded(sources())) == set(REASONS)


def test_each_name_of_a_guard_exists() -> None:
    names = set(re.findall(r"\bGUARD_IS\((\w+), \"", sources()["guards.h"]))
    used = {
        name
        for file, source in sources().items()
        if file != "guards.h"
        for name in re.findall(r"\b(?:GUARD|GUARD_FLAG|GUARD_VALUE|IS_DISABLED)\(\s*(\w+)", source)
    }
    assert used == names


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("f = openat(at, name, O_RDONLY | O_NOFOLLOW);", "O_NOFOLLOW"),
        ("if (fstat(f, &s) || s.st_ino != inode)", "s.st_ino != inode"),
        ("return a->inode[row] == status->st_ino;", "a->inode[row] == status->st_ino"),
        ("while (fsync(f))", "fsync("),
        ("return directory.st_uid == geteuid();", "directory.st_uid == geteuid()"),
        ("return !memcmp(mark, known, 8);", "memcmp(mark"),
    ],
)
def test_check_is_found(code: str, text: str) -> None:
    source = f"/* st_ino == 1 */\nint act(int here)\n{{\n    {code}\n}}\n"
    assert unguarded({"some.c": source}) == Counter([Check("some.c", "act", text)])


@pytest.mark.parametrize(
    "code",
    [
        "f = openat(at, name, GUARD_FLAG(SOME, O_NOFOLLOW));",
        "if (GUARD(SOME, (s.st_ino == inode) && s.st_dev == device))",
        "while (!IS_DISABLED(SOME) && fsync(f));",
        "row->inode = s.st_ino;",
    ],
)
def test_guard_is_no_finding(code: str) -> None:
    assert not unguarded({"some.c": f"int act(int here)\n{{\n    {code}\n}}\n"})


def test_function_is_a_guard_if_only_guards_call_it() -> None:
    inner = "int same(int x)\n{\n    return s.st_ino == x;\n}\n"
    outer = "int is_found(int x)\n{\n    return same(x);\n}\n"
    guard = "int act(int x)\n{\n    return GUARD(SOME, is_found(x));\n}\n"
    free = "int act(int x)\n{\n    return is_found(x);\n}\n"
    assert not unguarded({"some.c": inner + outer + guard})
    assert unguarded({"some.c": inner + outer + free}) == Counter([Check("some.c", "same", "s.st_ino == x")])
