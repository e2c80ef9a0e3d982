"""What a task is about. In words that is read only once its rank has been silent, by another thread than runs it."""

from __future__ import annotations

from typing import Any

from pcopy.engine.task import Task
from pcopy.tasks import read_values, sign_values, values
from pcopy.tasks.codec import decode
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
    values.Unmark: "syncing what was written over in",
    values.LinkNote: "noting links of",
    values.LinkGroup: "copying and linking",
    values.MakeLinks: "linking",
    values.FinishDir: "finishing",
    values.SealDir: "finishing",
    values.FailDir: "finishing",
    values.NameItems: "naming copies of",
    values.NameGroup: "naming the copy of",
    values.CopyAnew: "looking at",
    values.SyncFiles: "syncing the destination",
    read_values.ReadItems: "reading files of",
    read_values.VerifyItems: "reading back the copies of",
    read_values.VerifyLinks: "reading back the copies of",
    read_values.SplitRead: "reading",
    read_values.ReadOpened: "waiting for the chunks of",
    read_values.ReadChunk: "reading a part of",
    sign_values.SendEntries: "sorting the entries of the signature",
    sign_values.DigestLevel: "digesting directories",
    sign_values.ReadManifest: "reading the manifest",
    sign_values.SendLines: "sorting the lines of the manifest",
    sign_values.WriteManifest: "writing the manifest",
}


def whereabouts(task: Task, context: Context) -> str:
    """For instance ``copying files of data/run7``: the path on the source's side."""
    value = decode(task.payload)
    doing = _DOING.get(type(value), type(value).__name__)
    found = place_of(value)
    return doing if found is None else f"{doing} {shown(context.shown(*found, on_source=True))}"


def place_of(value: Any) -> tuple[values.Place, bytes] | None:
    """The directory, and the name in it, that a task is about: the first, if there are several."""
    if isinstance(value, values.ScanDir):
        return values.Place(value.root, value.path, value.source_id, values.NOWHERE, False, False), b""
    if isinstance(value, values.NameGroup):
        return place_of(value.split)
    if isinstance(value, values.MakeLinks | values.CopyAnew | read_values.VerifyLinks):
        return place_of(value.group)
    if isinstance(value, values.LinkGroup):
        return value.names[0]
    if isinstance(value, values.SealDir):
        return place_of(value.finish)
    if isinstance(value, values.CopyChunk | values.FinishFile | values.FileOpened):
        return place_of(value.file.split)
    if isinstance(value, read_values.SplitRead | read_values.ReadOpened | read_values.ReadChunk):
        return place_of(value.contents)
    place = getattr(value, "place", None)
    return None if place is None else (place, getattr(value, "name", b""))
