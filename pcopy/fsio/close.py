"""Closing a descriptor that was written to: an error there is an error of the copy (close(2))."""

from __future__ import annotations

import os

from pcopy.fsio.problem import Problem


def close_written(descriptor: int) -> None:
    """Closes; raises ``Problem``. Quota and network file systems report lost writes here."""
    try:
        os.close(descriptor)
    except OSError as error:
        raise Problem.of("close", error) from error
