"""Life cycles of a new item: one function for each way of creating it with ``pcopy.fsio.new_file``."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.in_place import open_file_for_overwrite
from pcopy.fsio.layout import LayoutRecipe
from pcopy.fsio.memory_copy import write_all
from pcopy.fsio.new_file import NewFile, NewLinkOrSpecialFile
from pcopy.fsio.nodes import LinkOrSpecialFile
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.problem import Problem

NAME, TEMPORARY = b"name", b".pcopy-temporary"
CONTENTS, OLD = b"the new contents", b"old"
MODE, TIME = 0o640, 1_000_000_000 * 10**9
LAYOUT = LayoutRecipe(attribute=("user.layout", b"striped"))
PRESERVE = PreservedMetadataKinds()
ATTRIBUTES = ItemMetadata(stat.S_IFREG | MODE, os.geteuid(), os.getegid(), TIME, TIME, (("user.test", b"value"),))


def present(directory: int) -> os.stat_result | None:
    try:
        return os.stat(NAME, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Problem.from_error("stat", error) from error


def write_and_apply_metadata(new: NewFile) -> None:
    write_all(new.descriptor, CONTENTS, 0)
    new.apply_metadata(ATTRIBUTES, PRESERVE, 0o022)


def at(directory: int) -> NewFile:
    with NewFile.create(directory, NAME) as new:
        write_and_apply_metadata(new)
        new.close_without_removing()
    return new


def beside(directory: int) -> NewFile:
    before = present(directory)
    with NewFile.create_temporary_file(directory, TEMPORARY) as new:
        write_and_apply_metadata(new)
        new.commit(NAME, before)
    return new


def synced(directory: int) -> NewFile:
    with NewFile.create_temporary_file(directory, TEMPORARY, layout=LAYOUT) as new:
        write_and_apply_metadata(new)
        new.commit(NAME, sync=True)
    return new


def again(directory: int) -> NewFile:
    with NewFile.create_temporary_file(directory, TEMPORARY) as begun:
        made = begun.file_identity(0)
        write_all(begun.descriptor, CONTENTS, 0)
        begun.close_without_removing()
    with NewFile.from_file_of_other_task(directory, TEMPORARY, made) as new:
        new.reopen(len(CONTENTS))
        new.apply_metadata(ATTRIBUTES, PRESERVE, 0o022)
        new.commit(NAME, present(directory))
    return new


def over(directory: int) -> NewFile:
    before, source = present(directory), os.stat_result((0,) * 10)
    assert before is not None
    opened = open_file_for_overwrite(directory, NAME, before, source, PRESERVE, "job", TEMPORARY)
    assert opened is not None
    with NewFile.create_temporary_file(directory, TEMPORARY, over=opened) as new:
        write_and_apply_metadata(new)
        new.close_without_removing(sync=True)
    return new


def node(directory: int) -> NewFile:
    attributes = ATTRIBUTES._replace(mode=stat.S_IFIFO | MODE, xattrs=())
    status = os.stat_result((attributes.mode, 0, 0, 1, 0, 0, 0, 0, 0, 0))
    before = present(directory)
    with NewLinkOrSpecialFile.create_link_or_special_file(
        directory, TEMPORARY, LinkOrSpecialFile(status, attributes, b""), is_temporary=True
    ) as new:
        new.apply_metadata(attributes, PRESERVE, 0o022)
        new.commit(NAME, before)
    return new


LIVES: dict[str, Callable[[int], NewFile]] = {
    life.__name__: life for life in (at, beside, synced, again, over, node)
}  # fmt: skip


def outcome_of(life: str, directory: int) -> str:
    """Run a life cycle and return ``done`` or the problem."""
    try:
        new = LIVES[life](directory)
    except Problem as problem:
        return f"{problem.operation}: {problem.strerror}"
    return "done" if new.metadata_problem is None else f"not all metadata: {new.metadata_problem.operation}"
