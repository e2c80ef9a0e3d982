"""What a task is about, in words: read only once its rank has been silent, and by another thread than runs it."""

from __future__ import annotations

from typing import Any

from pcopy.engine.task import Task
from pcopy.tasks import values
from pcopy.tasks.context import Context
from pcopy.text import shown

_DOING: dict[type[Any], str] = {
    values.ScanDir: "scanning",
    values.ScanNames: "scanning",
    values.CopyFiles: "copying files of",
    values.CopyNodes: "copying links and nodes of",
    values.SplitFile: "copying",
    values.FileOpened: "waiting for the chunks of",
    values.CopyChunk: "copying a part of",
    values.FinishFile: "finishing",
    values.LinkNote: "noting links of",
    values.LinkGroup: "copying and linking",
    values.MakeLinks: "linking",
    values.FinishDir: "finishing",
    values.SealDir: "finishing",
    values.SyncFiles: "syncing the destination",
}


def whereabouts(task: Task, context: Context) -> str:
    """For instance ``copying files of data/run7``: the path on the source's side."""
    value = values.decode(task.payload)
    doing = _DOING.get(type(value), type(value).__name__)
    found = _place(value)
    return doing if found is None else f"{doing} {shown(context.shown(*found, on_source=True))}"


def _place(value: Any) -> tuple[values.Place, bytes] | None:
    """The directory, and the name in it, that a task is about."""
    if isinstance(value, values.ScanDir):
        return values.Place(value.root, value.path, value.source_id, (0, 0), False, False), b""
    if isinstance(value, values.MakeLinks):
        return _place(value.group)
    if isinstance(value, values.LinkGroup):
        return value.names[0]
    if isinstance(value, values.SealDir):
        return _place(value.finish)
    if isinstance(value, values.CopyChunk | values.FinishFile | values.FileOpened):
        return _place(value.file.split)
    place = getattr(value, "place", None)
    return None if place is None else (place, getattr(value, "name", b""))
