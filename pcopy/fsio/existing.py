"""Decides what is done with a target that exists, from the status of both sides alone."""

from __future__ import annotations

import stat
from enum import Enum
from typing import Protocol


class Status(Protocol):
    """What of an item's status decides."""

    @property
    def st_mode(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_rdev(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...


class Decision(Enum):
    """For one item whose target's name is taken."""

    REPLACE = "replace"
    SKIP = "skip"
    FAIL = "fail"


def decide(policy: str, modify_window: int, source: Status, target: Status, *, contents: bool = False) -> Decision:
    """Applies ``policy`` (``pcopy.tasks.base.job.EXISTING``); ``modify_window`` is in seconds.

    With ``contents`` what is to be skipped must still be compared (``pcopy.fsio.compare``); times don't count then.
    Times are compared in whole seconds, because file systems differ in what they keep of the rest. An item of another
    type is never taken for the same.
    """
    if policy == "skip":
        return Decision.SKIP
    if policy == "fail":
        return Decision.FAIL
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode) or policy == "replace":
        return Decision.REPLACE
    later = int(source.st_mtime_ns // 10**9) - int(target.st_mtime_ns // 10**9)
    if policy == "newer":
        return Decision.REPLACE if later > modify_window else Decision.SKIP
    return Decision.SKIP if alike(source, target, modify_window, contents=contents) else Decision.REPLACE


def alike(source: Status, target: Status, modify_window: int, *, contents: bool = False) -> bool:
    """Does ``target`` look like a copy of ``source``, from their status? (A symbolic link's size is its text's.)

    With ``contents`` it is those that decide, where there are any, and not the times.
    """
    if stat.S_IFMT(source.st_mode) != stat.S_IFMT(target.st_mode):
        return False
    if (stat.S_ISREG(source.st_mode) or stat.S_ISLNK(source.st_mode)) and source.st_size != target.st_size:
        return False
    if (stat.S_ISBLK(source.st_mode) or stat.S_ISCHR(source.st_mode)) and source.st_rdev != target.st_rdev:
        return False
    return contents or abs(source.st_mtime_ns // 10**9 - target.st_mtime_ns // 10**9) <= modify_window
