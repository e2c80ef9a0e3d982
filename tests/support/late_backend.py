"""pcopy with a backend whose tickets are done later, and which can't be told from one with threads.

Some rows of a ticket take ``LATEST`` seconds at most. Each rank tells on its standard error at its end how many tickets
were under way at once, at most.
"""

from __future__ import annotations

import os
import sys

from pcopy.cli.pcopy import main
from pcopy.fsio.backend.interface import Backend, BackendSettings
from pcopy.launch import rank
from tests.support.fake_backend import LateBackend


class _Telling(LateBackend):
    def close(self) -> None:
        os.write(2, f"at once: {self.most}\n".encode())
        super().close()


def _late(settings: BackendSettings) -> Backend:
    return _Telling(settings, os.getpid(), float(os.environ.get("LATEST", "0.01")))


if __name__ == "__main__":
    vars(rank)["create_backend"] = _late
    sys.exit(main())
