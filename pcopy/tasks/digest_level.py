"""DigestLevel and its notes: directories are digested from the deepest level up, each by its owner.

A level is done in parts, each as a task of its own, so that what is told meanwhile doesn't pile up.
"""

from __future__ import annotations

from itertools import islice

from pcopy.engine.driver import Slices
from pcopy.signature.items import DIRECTORY
from pcopy.signature.manifest import order_key
from pcopy.tasks.context import Context
from pcopy.tasks.result import Result
from pcopy.tasks.sign_values import DifferencesNote, DigestLevel, DirectoriesNote, SignatureNote
from pcopy.tasks.signing import Directory, Row, Tally, owner_of

DIRECTORIES_AT_ONCE = 1024
DIFFERENCES_AT_ONCE = 4096
"""In one message; a single part of a directory may bring some more."""


def digest_level(task: DigestLevel, context: Context, result: Result) -> Slices:
    """The next directories of a level, or of it all if they are few."""
    if context.sign.level is None:
        context.sign.level = context.sign.signing.level(task.depth)
    rising: dict[int, list[tuple[int, bytes, bytes]]] = {}
    differences: list[tuple[str, bytes]] = []
    more = False
    for number, done in enumerate(islice(context.sign.level, DIRECTORIES_AT_ONCE), 1):
        differences += done.differences
        for directory in done.directories:
            if task.depth:
                around = directory.path.rpartition(b"/")[0]
                rising.setdefault(owner_of(around, context.size), []).append(_row(directory))
            else:
                note = SignatureNote(directory.side, directory.digest, tuple(directory.tally))
                result.spawn(note, owner=0)
        more = number == DIRECTORIES_AT_ONCE or len(differences) >= DIFFERENCES_AT_ONCE
        yield
        if more:
            break
    for owner, rows in rising.items():
        result.spawn(DirectoriesNote(tuple(rows)), owner=owner)
    if differences:
        result.spawn(DifferencesNote(tuple(differences)), owner=0)
    if more:
        result.spawn(task, owner=context.rank)
    else:
        context.sign.level = None
    return result.outcome()


def _row(directory: Directory) -> tuple[int, bytes, bytes]:
    return directory.side, directory.path, Row(DIRECTORY, 0, 0, directory.digest, directory.tally).packed()


def directories_note(task: DirectoriesNote, context: Context, result: Result) -> Slices:
    """At the owner of the directories around them."""
    for row in task.rows:
        context.sign.signing.add_directory(*row)
    return result.outcome()
    yield


def signature_note(task: SignatureNote, context: Context, result: Result) -> Slices:
    """At rank 0: a dataset's digest is known."""
    context.sign.signatures[task.side] = (task.digest, Tally(*task.tally))
    return result.outcome()
    yield


def differences_note(task: DifferencesNote, context: Context, result: Result) -> Slices:
    """At rank 0: kept in tree order, to be told at the end."""
    for what, path in task.rows:
        context.sign.differences.add(order_key(path), what.encode())
    return result.outcome()
    yield
