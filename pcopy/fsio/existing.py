"""What becomes of a target that exists: the decision, from both sides' status alone."""

from __future__ import annotations

import os
import stat
from enum import Enum


class Decision(Enum):
    """For one item whose target's name is taken."""

    REPLACE = "replace"
    SKIP = "skip"
    FAIL = "fail"


def decide(policy: str, modify_window: int, source: os.stat_result, target: os.stat_result) -> Decision:
    """Applies ``policy`` (``pcopy.tasks.job.EXISTING``); ``modify_window`` is in seconds.

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
    same_size = not stat.S_ISREG(source.st_mode) or source.st_size == target.st_size
    return Decision.SKIP if same_size and abs(later) <= modify_window else Decision.REPLACE
