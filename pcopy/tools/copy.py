"""``pcopy``: copy trees. All ranks load this module; rank 0 turns the command line into a job and reports
its result.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import BinaryIO

from pcopy.engine.task import Task
from pcopy.errors import INCOMPLETE, OK, REFUSED, STOPPED, Refused, hindrance
from pcopy.fsio.ways import keeps_times
from pcopy.jobs.directories import StoredJob, is_job
from pcopy.jobs.earlier_jobs import Earlier, earlier_jobs, taken_over
from pcopy.jobs.lifecycle import END_PATIENCE, Keeping, KeptJob, as_stored, go_on, keep_new, resuming
from pcopy.jobs.lock import Lock
from pcopy.jobs.paths import directory_filled, places_in, resolve, target_of
from pcopy.jobs.rank_store import refuse_unsynced
from pcopy.jobs.roots import refuse_unwritable
from pcopy.jobs.spool import NAME_ANOTHER, refusing, spool_in
from pcopy.launch.mounts import refuse_other_mounts
from pcopy.launch.tool import Ended, Preparation, Tool
from pcopy.launch.watch.signals import status_of
from pcopy.report.streams import tell
from pcopy.tasks.base.codec import decode
from pcopy.tasks.base.job import Job, Options, Root, Sink, Totals
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import Result
from pcopy.tasks.base.values import Place
from pcopy.tasks.copying import visitor_of
from pcopy.tasks.files.chunk_ledger import discard_all
from pcopy.text import counted, for_shell, shown
from pcopy.tools.arguments import CopyArguments, asked_for, refuse_different, renewed
from pcopy.tools.director import STAGES, CopyDirector
from pcopy.tools.outputs import check_outputs, holds_more, write_result
from pcopy.tools.summary import filter_values, job_lines, lacks_only_deletion, summary_of, told_of_halt
from pcopy.walk.look_ahead import LookAhead
from pcopy.walk.visitor import Visitor

_SLOW = 64 << 10
"""Bandwidth limit in bytes per second below which the user probably meant another unit; a hint is printed."""


def _visitor_of(rank: Rank, result: Result, place: Place, attempt: int) -> Visitor:
    """Return the visitor that copies the items of the directory ``place``; with ``--compress`` or ``--decompress`` the
    one that recodes them.
    """
    if not rank.options.recodes:
        return visitor_of(rank, result, place, attempt)
    from pcopy.tasks.recode import visiting  # Imported here since few jobs need it.

    return visiting.visitor_of(rank, result, place, attempt)


class Copy(Tool):
    """The program ``pcopy``, or ``psync``, which is the same program under another name."""

    writes = True
    unfinished = STOPPED
    spool_advice = NAME_ANOTHER
    stages = STAGES
    director = CopyDirector
    visitor = staticmethod(_visitor_of)

    def __init__(self, name: str = "pcopy") -> None:
        self.name = name

    def discard(self, rank: Rank, forgotten: Iterable[Task], since: int) -> None:
        """Remove unfinished files and files of chunks that this job created and that no remaining task needs.

        ``forgotten`` are the tasks that were dropped. If the spool that holds them cannot be read, their temporary
        files remain.
        """
        discard_all(rank, since)
        if rank.options.recodes:
            from pcopy.tasks.recode import recode_file

            recode_file.discard_all(rank, since)
        with suppress(OSError):  # The spool may be unreadable, for instance on a full disk: its tasks are unknown then.
            for task in forgotten:
                decode(task.payload).discard(rank, since)


COPY = Copy()
"""The program under its usual name."""


class CopyPreparation(Preparation):
    """The job of ``pcopy`` on rank 0: a new job, or the stored one that is resumed.

    ``__init__`` checks the command line, ``begin`` records the job or loads the progress of the resumed one, ``settle``
    writes the signature, and ``tell_end`` prints the summary and removes or keeps the records of the job.
    """

    def __init__(self, words: Sequence[str], arguments: CopyArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if it must not start; nothing is modified.

        Args:
            words: the command line from which ``arguments`` were parsed.
            arguments: the parsed command line.
        """
        super().__init__(arguments.ranks, arguments.in_flight, arguments.telling)
        self.arguments = arguments
        self._tell = partial(tell, arguments.program)
        self._words = words
        if arguments.keeping.spool:
            _check_spool(arguments.keeping.spool)
        self._earlier = Earlier()
        self._listed: BinaryIO | None = None
        self._has_room = arguments.force
        """True if the destination has enough free space as far as is known, or if the user does not want that to be
        checked (``--force``).
        """
        self._resumed = self._to_resume()
        if self._resumed is None:
            roots = self._resolved()
            refuse_unwritable(roots)
            options = arguments.options._replace(umask=_umask())
            check_outputs(roots, options, arguments.telling)
            if options.backup:
                from pcopy.tools.mirror import backup_in

                options = options._replace(backup=backup_in(options.backup, roots))
            if options.delete:
                from pcopy.tools.mirror import check_mirror

                check_mirror(arguments, roots, "--mirror" if "--mirror" in words else "--delete")
            self._earlier = earlier_jobs(roots, options, alone=not arguments.keeping.directory)
            self._has_room = self._look_ahead(roots, options)
            self.telling = self.telling._replace(umask=options.umask)
            if options.sequential or not keeps_times(directory_filled(roots)):
                from pcopy.tools.sequential import fitting  # Imported here since few destinations need it.

                options, notices = fitting(options, directory_filled(roots))
                self._earlier = self._earlier._replace(told=(*self._earlier.told, *notices))
            self.job = Job(os.urandom(5).hex(), 1, roots, options, doubted=self._earlier.doubted)
            self._listed = self._read_list(roots) if options.files_from else None
        self._signature: str | None = None
        self._unwritten = ""
        self._remarks: list[str] = []
        self._hints = list(self._earlier.told)
        """Notices that are printed at the start; with ``-q`` only at the end, and only if the job has failed."""

    def _look_ahead(self, roots: Sequence[Root], options: Options) -> bool:
        """Walk the sources up to a limit, and return True if the destination certainly has enough free space for them,
        or if that is not checked.

        Raise ``Refused`` if there is certainly too little space, or if filters exclude everything.
        """
        ahead = LookAhead()
        if options.select.anything:
            from pcopy.tools.selecting import refuse_nothing

            refuse_nothing(roots, options, ahead)
        return self.arguments.force or options.recodes or self._fits(roots, options, ahead)

    def _fits(self, roots: Sequence[Root], options: Options, ahead: LookAhead) -> bool:
        """Return True if the destination has enough free space as far as is known. Raise ``NoRoom`` if it certainly has
        too little.
        """
        from pcopy.tools.space import check_space

        return check_space(roots, options, ahead)

    def sink(self, screen: Sink) -> Sink:
        if self._has_room:
            return screen
        from pcopy.tools.space import RoomWatch

        return RoomWatch(screen, self.job.roots[0].target)

    def _read_list(self, roots: Sequence[Root]) -> BinaryIO:
        """Read and sort the list of ``--files-from``, and return the temporary file with the result. Raise ``Refused``
        if it cannot be used.
        """
        from pcopy.jobs.files_from import sorted_list

        if len(roots) > 1 or roots[0].item:
            reason = "takes one SRC" if len(roots) > 1 else f"{shown(roots[0].source_shown)} is no directory"
            raise Refused(f"--files-from: {reason}: name the directory below which the listed paths are")
        arguments = self.arguments
        open_spool = spool_in(arguments.keeping.spool)
        with refusing(arguments.keeping.spool):
            return sorted_list(arguments.options.files_from, roots[0], open_spool, nul=arguments.options.nul_separated)

    def _to_resume(self) -> tuple[StoredJob, Lock] | None:
        """Return the stored job that the command line resumes, and its lock, which this process holds; None for a new
        job.
        """
        arguments = self.arguments
        directory = arguments.keeping.directory
        if arguments.asked.resume is None and not (directory and is_job(directory)):
            return None
        from pcopy.jobs.chosen import resume, to_standard_error

        word = arguments.asked.resume if not directory else directory + b"/"
        assert word is not None
        stored, lock = resume(word, to_standard_error)
        try:
            if directory:
                refuse_different(stored, arguments, self._words, self._resolved)
            roots, options = as_stored(stored)
            check_outputs(roots, options, arguments.telling)
            self._earlier = taken_over(stored, roots, options)
        except BaseException:
            lock.close()
            raise
        keeping = arguments.keeping._replace(directory=stored.path, nonce=stored.file.nonce, at_start=False)
        self.kept = KeptJob(keeping, stored.file, lock)
        return stored, lock

    def _resolved(self) -> tuple[Root, ...]:
        """Return the sources and targets that the paths of the command line mean now. Raise ``Refused`` if they cannot
        be copied.
        """
        arguments, options = self.arguments, self.arguments.options
        exact, follow, stays = arguments.no_target_directory, options.dereference, options.one_file_system
        paths = arguments.sources, arguments.destination
        return resolve(*paths, exact, follow=follow, stays=stays, recoding=options if options.recodes else None)

    def begin(self, ranks: int) -> None:
        """Complete the preparation for this number of ranks: distribute the tasks of a resumed job among them, or
        record a new job.
        """
        arguments = self.arguments
        if self._resumed is not None:
            stored, lock = self._resumed
            roots, options = as_stored(stored)
            refuse_other_mounts(stored.file, roots, options)
            given = None if arguments.asked.resume is None else arguments.asked.given
            options = renewed(options, arguments.options, given)
            self.job, self.kept = go_on(stored, lock, ranks, arguments.keeping, options)
            self.telling = self.telling._replace(umask=self.job.options.umask)
            self._remarks += self.kept.notices
            from pcopy.jobs.leftovers import remove_unfinished

            self._remarks += remove_unfinished(self.job.options._asdict(), self.job.name, self.job.run)
            _umask()
        elif arguments.is_kept:
            self._keep()
        if self.job.options.files_from:
            self._hand_over_list()
        if self.kept and (own_places := places_in(self.kept.keeping.directory, self.job.roots)):
            self.job = self.job._replace(own=own_places)
            self._hints.append(f"{shown(self.kept.keeping.directory)}: is this job's own directory, and not copied")
        if self.job.options.delete:
            from pcopy.tools.mirror import spared_in

            kept = self.kept.keeping.directory if self.kept else b""
            self.job = self.job._replace(
                spared=spared_in((kept, self.job.options.backup), self.job.roots, self.job.options)
            )

    def _hand_over_list(self) -> None:
        """Store the path of the sorted list of ``--files-from`` in the job. The list of a resumed job is in its job
        directory.
        """
        from pcopy.jobs.files_from import kept_in, path_of

        if self._listed is None:
            self.job = self.job._replace(listed=kept_in(self.keeping.directory))
            return
        self.job = self.job._replace(listed=path_of(self._listed))
        if self.kept is not None:
            self.kept.listed = self._listed

    def _keep(self) -> None:
        """Prepare the job directory. If the destination cannot be synced, continue without one, and print a notice."""
        try:
            refuse_unsynced(self.job.roots)
        except Refused as refused:
            self._remarks.append(f"no checkpoints, the job goes on without: {refused}")
        else:
            self.job, self.kept = keep_new(self.job, self.arguments.keeping, asked_for(self.arguments))

    @property
    def keeping(self) -> Keeping:
        """How the job is recorded, for all ranks; without a directory if it is not recorded."""
        return self.kept.keeping if self.kept else self.arguments.keeping._replace(directory=b"", at_start=False)

    def announce(self) -> None:
        from pcopy.tools.striping import useless_options

        if useless := useless_options(self.job):
            self._hints.append(useless)
        if 0 < self.job.options.bwlimit < _SLOW:
            rate = self.job.options.bwlimit
            self._hints.append(f"--bwlimit: {rate:,} bytes a second; a number alone is bytes (rsync's: {rate}K)")
        if not self.telling.quiet:
            roots = self.job.roots
            if self.job.options.recodes:
                from pcopy.tasks.base.recoded import with_recoded_names

                roots = with_recoded_names(self.job)
            targets = {target_of(root) for root in roots} if len(roots) == 1 else {roots[0].target}
            sources = shown(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
            stream = sys.stderr if self.telling.json else sys.stdout
            print(f"{sources} -> {shown(targets.pop())}", file=stream, flush=True)
            self._remarks += self._hints
        while self._remarks:
            self._tell(self._remarks.pop(0))

    def settle(self, rank: Rank, totals: Totals) -> int:
        """Write the signature, if asked for, and return the exit status.

        A copy is incomplete if the signature that was asked for could not be written.
        """
        if self.job.options.select.anything:
            from pcopy.tools.selecting import nothing_selected

            if nothing := nothing_selected(totals, self.job.options.select):
                self._remarks.append(nothing)
                return REFUSED
        if not self.job.options.signs:
            return OK
        if totals.extra or holds_more(self.job.roots):
            self._remarks.append("DST holds more than the source: its contents will not match the signature")
        from pcopy.tasks.sign.signing import SignState

        sign = rank.own(SignState)
        self._unwritten = write_result(self.job, sign)
        if self._unwritten:
            return INCOMPLETE
        self._signature = sign.signatures[0][0].hex()
        return OK

    def tell_end(self, ended: Ended, ranks: int) -> int:
        seconds = time.monotonic() - self.began
        earlier_bytes = Totals(*self.keeping.counts).bytes if self.keeping.resumed else None
        if ended.halted is not None:
            cut_short = self._resumed is not None and self._resumed[0].file.may_have_cut_short
            self._tell(told_of_halt(ended.halted, cut_short))
        is_quiet = self.telling.quiet and ended.status == OK
        if self.telling.quiet and not is_quiet:
            self._remarks = self._hints + self._remarks
        for remark in filter(None, (*self._remarks, self._unwritten)):
            self._tell(remark)
        if self.job.options.signs and self._signature is None and not self._unwritten:
            self._tell("no signature or manifest was written, since not everything was copied")
        is_done = ended.status == OK or lacks_only_deletion(self.job, ended.totals)
        goes_on = not is_done and self.kept is not None and self.kept.is_stored
        job = self.job.name if goes_on else None
        in_order, signature = self.job.options.sequential, self._signature
        self.values = summary_of(
            ended, seconds, ranks, signature=signature, job=job, before=earlier_bytes, sequential=in_order
        )
        self.values |= filter_values(self.telling.filters)
        if self.telling.json:
            print(json.dumps(self.values), flush=True)
        elif not is_quiet:
            lines = job_lines(
                self.job,
                ended,
                seconds,
                ranks,
                earlier_bytes,
                unwritten=bool(self._unwritten),
                filters=self.telling.filters,
            )
            if self.telling.verbose:
                lines += [f"layout of {counted(files, 'file', 'files')}: {text}" for text, files in ended.layouts]
            if self._signature:
                lines.append(f"signature {self._signature} ({self.job.options.hash})")
            print("\n".join(lines), flush=True)
        self._tell_of_job(ended)
        return ended.status

    def _tell_of_job(self, ended: Ended) -> None:
        """Remove or keep the job directory, and print what becomes of it. After success, also discard older jobs that
        this one replaces.
        """
        is_done = ended.status == REFUSED or (
            ended.status == INCOMPLETE and lacks_only_deletion(self.job, ended.totals)
        )
        status = OK if is_done else ended.status
        if status == OK and self._earlier.superseded:
            from pcopy.jobs.chosen import discard_superseded
            from pcopy.jobs.leftovers import remove_temporaries

            discard_superseded(self._earlier.superseded, partial(remove_temporaries, report=self._tell), self._tell)
        if self.kept is None:
            return
        patience = None if ended.halted is None or status_of(ended.halted) is None else END_PATIENCE
        try:
            for remark in self.kept.end(status, ended.totals, patience, is_durable=ended.is_durable):
                self._tell(remark)
        except Refused as refused:
            self._tell(refused)
        except OSError as error:
            self._tell(f"the job directory may remain: {hindrance(error)}")
        if status != OK:
            self._tell_command()

    def tell_how_to_go_on(self) -> None:
        if self.kept is not None:
            self.kept.look()
        self._tell_command()

    def _tell_command(self) -> None:
        """Print the command that resumes the job, or how to start it again if it cannot be resumed."""
        if self.kept is not None and self.kept.is_stored:
            self._tell(f"to go on: {resuming(self.kept.keeping.directory)}")
        elif self.kept is not None:
            vanished = f"{shown(self.kept.keeping.directory)}: the job directory has vanished"
            why = vanished if self.kept.has_vanished else "no checkpoint was stored"
            self._tell(f"{why}: start it again{self._with_other_words()}")

    def _with_other_words(self) -> str:
        """Return the command that starts the same copy again, with ``--no-target-directory``; "" if the original
        command still means the same.

        A directory that was copied to a DST that did not exist is an example: DST exists now, and the original command
        would copy into it.
        """
        if self._resumed is not None:
            return ""
        try:
            roots = self._resolved()
        except Refused:  # The next start reports the reason.
            return ""
        if target_of(roots[0]) == target_of(self.job.roots[0]):
            return ""
        words = [
            self.arguments.program,
            "--no-target-directory",
            *(for_shell(os.fsencode(word)) for word in self._words),
        ]
        return f" as {' '.join(words)}, since {shown(self.arguments.destination)} exists now"


def _check_spool(directory: bytes) -> None:
    """Raise ``Refused`` unless files can be created in the directory of ``--spool``."""
    from pcopy.fsio.named_file import NotTrusted, held_directory

    why = "not a directory that can be written"
    try:
        with held_directory(directory) as spool:
            if os.access(spool, os.W_OK | os.X_OK):
                return
    except NotTrusted as error:
        why = str(error.strerror)
    except OSError:
        pass
    raise Refused(f"--spool {shown(directory)}: {why}")


def _umask() -> int:
    """Set the umask to 077 and return the umask of the user. Files are private until they are complete and get their
    modes.
    """
    return os.umask(0o077)
