"""``pcopy``: from the command line to the exit status.

Rank 0 resolves and refuses before anything is touched. Without a launcher it forks the other ranks; under mpiexec or
srun it tells them the job. Only rank 0 writes to standard output.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence

from pcopy import errors


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    from pcopy.cli.streams import standard_streams

    with standard_streams() as streams:
        try:
            status = _run(sys.argv[1:] if argv is None else argv)
        except KeyboardInterrupt:  # before signals stop a job in order, and before anything is touched
            status = 128 + signal.SIGINT
        return streams.settle(status)


def _run(words: Sequence[str]) -> int:
    from pcopy.cli.launcher import is_launched, speaks
    from pcopy.cli.options import early_answer

    if (text := early_answer(words)) is not None:
        if speaks(os.environ):
            print(text)
        return errors.OK
    try:
        if is_launched(os.environ):
            from pcopy.cli.mpi_run import run_under_launcher

            return run_under_launcher(words)
        from pcopy.cli.local_run import run_locally

        return run_locally(words)
    except errors.PcopyError as error:
        print(f"pcopy: {error}", file=sys.stderr)
        return error.status
