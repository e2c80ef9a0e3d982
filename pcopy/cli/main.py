"""``pcopy``: from the command line to the exit status.

Rank 0 resolves and refuses before anything is touched. Without a launcher it forks the other ranks; under mpiexec or
srun it tells them the job. Only rank 0 writes to standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pcopy import errors


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    words = sys.argv[1:] if argv is None else argv
    from pcopy.cli.options import early_answer

    if (text := early_answer(words)) is not None:
        print(text)
        return errors.OK
    try:
        from pcopy.cli.launcher import expected_size

        size = expected_size(os.environ)
        if size:
            from pcopy.cli.mpi_run import run_under_launcher

            return run_under_launcher(words, size)
        from pcopy.cli.local_run import run_locally

        return run_locally(words)
    except errors.PcopyError as error:
        print(f"pcopy: {error}", file=sys.stderr)
        return error.status
