"""Run one rank under mpiexec. The rank that gets the faults is traced from MPI_Init to MPI_Finalize.

The calls in these two functions are not pcopy's: if they fail, MPI ends the process with its own message.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pcopy.launch import mpi_run
from pcopy.launch.launcher import LauncherInfo
from tests.faults.tracing import TRACED, load, main_of, trace


def main(words: Sequence[str]) -> None:
    """Become this rank of the command ``words``; never return."""
    traced, place, options = json.loads(os.environ.pop(TRACED))
    with open(Path(place, "ranks"), "a") as file:
        file.write(f"{os.getpid()}\n")
    load()
    join = mpi_run._initialise_mpi

    def joined(launch: LauncherInfo, *rest: Any) -> Any:
        transport = join(launch, *rest)
        if transport.rank == traced and options:
            tracer = trace(os.getpid(), Path(place, "log"), options)
            meet, end = transport.wait_for_all_ranks, transport.finalise_mpi

            def met(seconds: float = math.inf) -> bool:
                have_met: bool = meet(seconds)
                if have_met:
                    tracer.terminate()
                    tracer.wait()
                return have_met

            def ended(seconds: float = math.inf) -> Any:
                transport.wait_for_all_ranks = met
                return end(seconds)

            transport.finalise_mpi = ended
        return transport

    mpi_run._initialise_mpi = joined  # type: ignore[assignment]
    os._exit(main_of(words[0])(list(words[1:])))


if __name__ == "__main__":
    main(sys.argv[1:])
