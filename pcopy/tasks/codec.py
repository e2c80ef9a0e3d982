"""One codec for all tasks, on the wire and in checkpoints: pickled primitives, read by an unpickler that refuses every
global."""

from __future__ import annotations

import pickle
from typing import Any

from pcopy.engine.messages import load_primitives
from pcopy.errors import InvariantBroken
from pcopy.fsio.attributes import Attributes
from pcopy.fsio.identity import Identity
from pcopy.fsio.source import Version
from pcopy.tasks import read_values, sign_values, values

_TYPES: tuple[type[Any], ...] = (
    values.ScanDir, values.ScanNames, values.CopyFiles, values.CopyNodes, values.SplitFile, values.FileOpened,
    values.CopyChunk, values.ChunkDone, values.FinishFile, values.LinkNote, values.GroupLinks, values.LinkGroup,
    values.Unmark, values.MakeLinks, values.InodeCopied, values.FinishDir, values.SealDir, values.SealDirs,
    values.FailDir, values.SyncFiles, values.NameItems, values.NameGroup, values.CopyAnew, values.ReportFailures,
    read_values.ReadItems, read_values.VerifyItems, read_values.VerifyLinks, read_values.SplitRead,
    read_values.ReadOpened, read_values.ReadChunk, read_values.ChunkRead,
    sign_values.StoredEntries, sign_values.SendEntries, sign_values.EntriesNote, sign_values.DeepestNote,
    sign_values.DigestLevel, sign_values.DirectoriesNote, sign_values.SignatureNote, sign_values.DifferencesNote,
    sign_values.SendLines, sign_values.LinesNote, sign_values.WriteManifest, sign_values.ReadManifest,
)  # fmt: skip
_NESTED: tuple[type[Any], ...] = (
    values.Place, Attributes, Version, values.OpenFile, values.Known, read_values.Contents, sign_values.Entries,
    values.Retry, Identity, values.Unnamed,
)  # fmt: skip
_CODES = {kind: code for code, kind in enumerate((*_TYPES, *_NESTED))}
_KINDS = (*_TYPES, *_NESTED)


def _plain(value: Any) -> Any:
    """Named tuples as plain ones that begin with their code; other tuples begin with -1."""
    if isinstance(value, tuple):
        return (_CODES.get(type(value), -1), *[_plain(field) if isinstance(field, tuple) else field for field in value])
    return value


def _named(value: Any) -> Any:
    if isinstance(value, tuple):
        fields = [_named(field) if isinstance(field, tuple) else field for field in value[1:]]
        return tuple(fields) if value[0] < 0 else _KINDS[value[0]](*fields)
    return value


def encode(task: tuple[Any, ...]) -> bytes:
    """The packed form of a task."""
    return pickle.dumps(_plain(task), 5)


def decode(payload: bytes) -> Any:
    """The task whose packed form is ``payload``; raises ``InvariantBroken`` for anything else."""
    try:
        task = _named(load_primitives(payload))
    except Exception as error:
        raise InvariantBroken(f"a task that is none of pcopy's: {error}") from error
    if not isinstance(task, _TYPES):
        raise InvariantBroken(f"a task that is none of pcopy's: {task!r}")
    return task
