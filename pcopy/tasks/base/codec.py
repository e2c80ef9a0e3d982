"""One codec for all tasks, on the wire and in checkpoints: pickled primitives, read by an unpickler that refuses every
global.

A task is packed as a tuple of its kind's code and its fields. Tuples within begin with the code of a part, or with -1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.errors import InvariantBroken
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.identity import Identity
from pcopy.fsio.source import Version
from pcopy.tasks.base import values
from pcopy.tasks.base.kind import FORMAT, KINDS, Kind

PARTS: dict[int, type[Any]] = {
    200: values.Place, 201: Attributes, 202: Version, 203: values.OpenFile, 204: values.Known,
    205: values.Contents, 206: values.Entries, 207: values.Retry, 208: Identity, 209: values.Unnamed,
    210: values.Item, 211: values.Copy,
}  # fmt: skip
"""What tasks are made of. A code is never given to another part."""


LATER = {
    **dict.fromkeys((1, 2), "pcopy.tasks.directories.scan_dir"),
    **dict.fromkeys(range(3, 7), "pcopy.tasks.directories.finish_dir"),
    7: "pcopy.tasks.directories.sync_files",
    8: "pcopy.tasks.directories.scan_dirs",
    9: "pcopy.tasks.directories.finish_dirs",
    10: "pcopy.tasks.files.copy_files",
    11: "pcopy.tasks.files.copy_nodes",
    12: "pcopy.tasks.files.split_file",
    **dict.fromkeys((13, 15), "pcopy.tasks.files.chunk_ledger"),
    16: "pcopy.tasks.files.finish_file",
    17: "pcopy.tasks.files.unmark",
    **dict.fromkeys((18, 19), "pcopy.tasks.files.name_items"),
    **dict.fromkeys((21, 22), "pcopy.tasks.files.layouts"),
    **dict.fromkeys((30, 31, 34), "pcopy.tasks.links.group_links"),
    32: "pcopy.tasks.links.link_group",
    33: "pcopy.tasks.links.make_links",
    35: "pcopy.tasks.links.copy_anew",
    36: "pcopy.tasks.links.inodes_copied",
    37: "pcopy.tasks.links.link_groups",
    40: "pcopy.tasks.verify.read_items",
    **dict.fromkeys(range(43, 47), "pcopy.tasks.verify.split_read"),
    **dict.fromkeys((14, 20), "pcopy.tasks.files.copy_chunk"),
    23: "pcopy.tasks.directories.copy_listed",
    **dict.fromkeys((41, 42), "pcopy.tasks.verify.verify_items"),
    **dict.fromkeys((80, 81, 83, 86), "pcopy.tasks.remove.remove_tree"),
    **dict.fromkeys((110, 111), "pcopy.tasks.listed.hand_out"),
    **dict.fromkeys((112, 113, 114), "pcopy.tasks.listed.deepest_first"),
    **dict.fromkeys((84, 85, 169), "pcopy.tasks.remove.delete_extra"),
    166: "pcopy.tasks.remove.stopping",
    **dict.fromkeys(range(50, 58), "pcopy.tasks.sign.digest_level"),
    **dict.fromkeys(range(58, 62), "pcopy.tasks.sign.manifest_lines"),
    **dict.fromkeys((71, 72), "pcopy.tasks.tell_items"),
    **dict.fromkeys((120, 121), "pcopy.tasks.compare.compare_trees"),
    **dict.fromkeys(range(122, 127), "pcopy.tasks.compare.contents"),
    127: "pcopy.tasks.compare.tell_differences",
    170: "pcopy.tasks.recode.recode_files",
    **dict.fromkeys(range(171, 176), "pcopy.tasks.recode.recode_file"),
    176: "pcopy.tasks.recode.finish_recoded",
}
"""Kinds that some jobs have none of, by the modules that they are in: these take a while to load."""

_CODES = {part: code for code, part in PARTS.items()}


def _plain(value: Any) -> Any:
    """Parts as plain tuples that begin with their code; other tuples begin with -1."""
    if not isinstance(value, tuple):
        return value
    code = value.code if isinstance(value, Kind) else _CODES.get(type(value), -1)
    return (code, *[_plain(field) if isinstance(field, tuple) else field for field in value])


def _named(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    code, *packed = value
    fields = [_named(field) if isinstance(field, tuple) else field for field in packed]
    if code < 0:
        return tuple(fields)
    if code in LATER and code not in KINDS:
        import_module(LATER[code])
    if code in KINDS:
        return KINDS[code].of(fields)
    if code in PARTS:
        return PARTS[code](*fields)
    raise InvariantBroken(f"a task with the code {code!r}, which format {FORMAT} of tasks does not know")


def load_later() -> None:
    """Loads all kinds: a job that will need them does so before anything has become scarce."""
    for module in set(LATER.values()):
        import_module(module)


def encode(task: Kind) -> bytes:
    return dump_primitives(_plain(task))


def decode(payload: bytes) -> Any:
    """The task whose packed form is ``payload``; raises ``InvariantBroken`` if it is none that this pcopy has."""
    try:
        task = _named(load_primitives(payload))
    except InvariantBroken:
        raise
    except Exception as error:
        raise InvariantBroken(f"a task that is none of pcopy's: {error}") from error
    if not isinstance(task, Kind):
        raise InvariantBroken(f"a task that is none of pcopy's: {task!r}")
    return task
