"""Packing of tasks to bytes and unpacking, for messages and for checkpoints.

The packed form is a pickle of primitives (tuples, numbers, bytes, strings) only, and the unpickler refuses everything
else. So data from another rank or from disk cannot create any other object. A task becomes a tuple of the code of its
kind and its fields. A tuple in a field begins with the code of its type (``FIELD_VALUE_TYPES``), or with -1 if it is a
plain tuple.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from pcopy.engine.messages import dump_primitives, load_primitives
from pcopy.errors import InvariantBroken
from pcopy.fsio.attributes import ItemMetadata
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.source import FileContentVersion
from pcopy.tasks.base import values
from pcopy.tasks.base.kind import KIND_BY_CODE, TASK_FORMAT, TaskKind

FIELD_VALUE_TYPES: dict[int, type[Any]] = {
    200: values.Place, 201: ItemMetadata, 202: FileContentVersion, 203: values.ChunkedFile, 204: values.ContentInfo,
    205: values.FileToRead, 206: values.SignatureEntries, 207: values.FailureRetry, 208: ItemIdentity,
    209: values.UnnamedCopy,
    210: values.Item, 211: values.ItemCopy,
}  # fmt: skip
"""Types of the tuples that fields of tasks may contain, by code. A code is never reused for another type. A change of a
type requires another ``TASK_FORMAT``.
"""


LAZY_MODULES = {
    **dict.fromkeys((1, 2, 159), "pcopy.tasks.directories.scan_dir"),
    **dict.fromkeys(range(3, 7), "pcopy.tasks.directories.finish_dir"),
    7: "pcopy.tasks.directories.sync_files",
    8: "pcopy.tasks.directories.scan_dirs",
    9: "pcopy.tasks.directories.finish_dirs",
    10: "pcopy.tasks.files.copy_files",
    11: "pcopy.tasks.files.copy_nodes",
    12: "pcopy.tasks.files.split_file",
    **dict.fromkeys((13, 15), "pcopy.tasks.files.chunk_ledger"),
    16: "pcopy.tasks.files.finish_file",
    17: "pcopy.tasks.files.remove_marks",
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
    **dict.fromkeys((80, 81, 86), "pcopy.tasks.remove.remove_tree"),
    83: "pcopy.tasks.remove.ledger",
    **dict.fromkeys((110, 111), "pcopy.tasks.listed.hand_out"),
    **dict.fromkeys((112, 113, 114), "pcopy.tasks.listed.deepest_first"),
    **dict.fromkeys((84, 85, 169), "pcopy.tasks.remove.delete_extra"),
    166: "pcopy.tasks.remove.stop_deletion",
    **dict.fromkeys(range(50, 58), "pcopy.tasks.sign.digest_level"),
    **dict.fromkeys(range(58, 62), "pcopy.tasks.sign.manifest_lines"),
    **dict.fromkeys((71, 72), "pcopy.tasks.report_items"),
    **dict.fromkeys((120, 121), "pcopy.tasks.compare.compare_trees"),
    **dict.fromkeys(range(122, 127), "pcopy.tasks.compare.contents"),
    127: "pcopy.tasks.compare.report_differences",
    128: "pcopy.tasks.compare.compare_pairs",
    170: "pcopy.tasks.recode.recode_files",
    **dict.fromkeys(range(171, 176), "pcopy.tasks.recode.recode_file"),
    176: "pcopy.tasks.recode.finish_recoded",
}
"""Modules of those kinds of tasks that many jobs do not use, by code. Such a module is imported when the first task of
its kinds is unpacked, which keeps the start of other jobs fast.
"""

_FIELD_VALUE_CODES = {part: code for code, part in FIELD_VALUE_TYPES.items()}


def _encode_as_tuples(value: Any) -> Any:
    """Return ``value`` in the form that is packed: each tuple becomes a plain tuple that begins with a code: the code
    of its kind of task, that of its type (``FIELD_VALUE_TYPES``), or -1 for a plain tuple.
    """
    if not isinstance(value, tuple):
        return value
    code = value.code if isinstance(value, TaskKind) else _FIELD_VALUE_CODES.get(type(value), -1)
    return (code, *[_encode_as_tuples(field) if isinstance(field, tuple) else field for field in value])


def _decode_from_tuples(value: Any) -> Any:
    """Return ``value`` with each plain tuple replaced by the task, value or tuple from which ``_encode_as_tuples`` made
    it. Raise ``InvariantBroken`` for an unknown code.
    """
    if not isinstance(value, tuple):
        return value
    code, *packed = value
    fields = [_decode_from_tuples(field) if isinstance(field, tuple) else field for field in packed]
    if code < 0:
        return tuple(fields)
    if code in LAZY_MODULES and code not in KIND_BY_CODE:
        import_module(LAZY_MODULES[code])
    if code in KIND_BY_CODE:
        return KIND_BY_CODE[code].from_values(fields)
    if code in FIELD_VALUE_TYPES:
        return FIELD_VALUE_TYPES[code](*fields)
    raise InvariantBroken(f"unknown code {code!r} in a task (format {TASK_FORMAT} of tasks)")


def import_all_task_modules() -> None:
    """Import the modules of all kinds. A job that will need them does so at its start, while memory and file
    descriptors are certainly available.
    """
    for module in set(LAZY_MODULES.values()):
        import_module(module)


def encode_task(task: TaskKind) -> bytes:
    """Return the packed form of a task, as bytes."""
    return dump_primitives(_encode_as_tuples(task))


def decode_task(payload: bytes) -> Any:
    """Return the task whose packed form is ``payload``. Raise ``InvariantBroken`` if ``payload`` is no task that this
    version of pcopy knows.
    """
    try:
        task = _decode_from_tuples(load_primitives(payload))
    except InvariantBroken:
        raise
    except Exception as error:
        raise InvariantBroken(f"not a task of pcopy: {error}") from error
    if not isinstance(task, TaskKind):
        raise InvariantBroken(f"not a task of pcopy: {task!r}")
    return task
