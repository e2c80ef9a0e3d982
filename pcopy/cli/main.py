"""``pcopy``: from the command line to the exit status.

Rank 0 resolves and refuses before anything is touched. Without a launcher it forks the other ranks; under mpiexec or
srun it tells them the job. Only rank 0 writes to standard output.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pcopy import errors
from pcopy.cli import interrupts

if TYPE_CHECKING:
    from pcopy.cli.command import Preparation
    from pcopy.cli.streams import Streams


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return run_command("pcopy", sys.argv[1:] if argv is None else argv, _answer, _prepare, errors.INCOMPLETE)


def _answer(words: Sequence[str]) -> str | None:
    """What needs no ranks: the version, help, and what is asked of the jobs that there are."""
    from pcopy.cli.options import early_answer

    if (text := early_answer(words)) is not None:
        return text
    if not any(word == "--jobs" or word.startswith("--discard") for word in words):
        return None
    from pcopy.cli.job_commands import answer

    interrupts.raise_again()
    return answer(words)


def _prepare(words: Sequence[str]) -> Preparation:
    from pcopy.cli.prepare import CopyPreparation

    interrupts.raise_again()
    return CopyPreparation(words)


def run_command(
    name: str,
    words: Sequence[str],
    early_answer: Callable[[Sequence[str]], str | None],
    prepare: Callable[[Sequence[str]], Preparation],
    status_of_loss: int,
    *,
    answers: bool = False,
) -> int:
    """Runs the command ``name``, which gives an early answer (the version, for instance) or prepares a job.

    ``status_of_loss`` is the least status of a run whose output is lost; ``answers``: what it prints is all that it is
    run for, as with every early answer, so that no closed standard output is good enough.
    """
    from pcopy.cli.streams import standard_streams

    with standard_streams() as streams:
        streams.answers = answers
        try:
            status = _run(name, words, early_answer, prepare, streams)
        except KeyboardInterrupt:  # before signals stop a job in order, and before anything is touched
            sys.stderr.write(interrupts.line(name))
            status = interrupts.STATUS
        return streams.settle(status, name, status_of_loss)


def _run(
    name: str,
    words: Sequence[str],
    early_answer: Callable[[Sequence[str]], str | None],
    prepare: Callable[[Sequence[str]], Preparation],
    streams: Streams,
) -> int:
    from pcopy.cli.launcher import is_launched, speaks

    try:
        try:
            text = early_answer(words)
        except errors.Refused as refused:
            if not speaks(os.environ):
                return refused.status
            raise
        if text is not None:
            streams.answers = True
            if text and speaks(os.environ):
                print(text)
            return errors.OK
        from pcopy.cli.command import Command

        command = Command(name, prepare)
        if is_launched(os.environ):
            from pcopy.cli.mpi_run import run_under_launcher

            return run_under_launcher(words, command)
        from pcopy.cli.local_run import run_locally

        return run_locally(words, command)
    except errors.PcopyError as error:
        from pcopy.cli.streams import tell

        tell(name, error)
        return error.status
    except Exception as error:  # never Python's own status 1, which says something else
        from pcopy.cli.unexpected import tell_unexpected

        return tell_unexpected(name, error)
