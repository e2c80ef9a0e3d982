"""Running code as root or temporarily as another user."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Sequence

import pytest

NOBODY = 65534
"""The ordinary user and the group of tests, which do not have to be in /etc/passwd."""


def is_root() -> bool:
    return os.geteuid() == 0


def require_root(why: str) -> None:
    """Skip the test when an ordinary user runs it; ``why`` says what needs root."""
    if not is_root():
        pytest.skip(f"only root can {why}")


def as_user(action: Callable[[], object], uid: int = NOBODY, groups: Sequence[int] = ()) -> None:
    """Run ``action`` as an ordinary user, in a child process. Without root this process belongs to such a user
    already.
    """
    if not is_root():
        action()
        return
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.setgroups(groups)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the action as an ordinary user failed"
