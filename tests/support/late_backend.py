"""pcopy with a backend that completes tickets later, like one with threads.

Some rows of a ticket take at most ``LATEST`` seconds. At its end each rank prints the maximum number of active tickets
to standard error.
"""

from __future__ import annotations

import os
import sys

from pcopy.cli.pcopy import main
from pcopy.fsio.backend.interface import BackendSettings, FileOperationBackend
from pcopy.launch import rank
from tests.support.fake_backend import LateBackend


class _Reporting(LateBackend):
    def close(self) -> None:
        os.write(2, f"at once: {self.most}\n".encode())
        super().close()


def _late(settings: BackendSettings) -> FileOperationBackend:
    return _Reporting(settings, os.getpid(), float(os.environ.get("LATEST", "0.01")))


if __name__ == "__main__":
    vars(rank)["create_backend"] = _late
    sys.exit(main())
