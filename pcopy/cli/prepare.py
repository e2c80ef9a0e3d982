"""From the user's words to a job, and from its end to what the user is told. Both on rank 0 only."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pcopy.checkpoint.jobs import is_job
from pcopy.cli.earlier_jobs import Earlier, earlier_jobs, taken_over
from pcopy.cli.job_options import asked_for
from pcopy.cli.keeping import Keeping, refuse_unsynced
from pcopy.cli.kept_job import (
    END_PATIENCE,
    KeptJob,
    as_it_stands,
    as_stored,
    go_on,
    keep_new,
    resuming,
    unkept,
)
from pcopy.cli.mounts import refuse_other_mounts
from pcopy.cli.options import parse
from pcopy.cli.outputs import check_outputs, holds_more, remove_unfinished, unwritten, write_result, written_by
from pcopy.cli.paths import is_same_source, places_in, resolve, target_of
from pcopy.cli.rank import Ended
from pcopy.cli.report import summary_json, summary_lines
from pcopy.cli.signals import status_of, told
from pcopy.cli.streams import tell
from pcopy.cli.verbose import Verbose
from pcopy.errors import INCOMPLETE, OK, Refused, hindrance
from pcopy.signature.algorithms import algorithm
from pcopy.tasks.job import Job, Options, Totals
from pcopy.tasks.sign_state import SignState
from pcopy.tasks.sinks import Sink
from pcopy.text import for_shell, shown

if TYPE_CHECKING:
    from pcopy.cli.jobs import Resumed


_IMPLY_A_HASH = frozenset(("--signature", "--manifest", "--verify", "--repair"))


class CopyPreparation:
    """A job, the arguments that it came from, and the time (seconds) at which it began."""

    def __init__(self, words: Sequence[str]) -> None:
        """Raises ``Refused``; nothing is touched."""
        self.began = time.monotonic()
        arguments = self.arguments = parse(words)
        self._words = words
        if arguments.checkpoint.spool and not os.access(arguments.checkpoint.spool, os.W_OK | os.X_OK):
            raise Refused(f"--spool {shown(arguments.checkpoint.spool)}: not a directory that can be written")
        self.kept: KeptJob | None = None
        self._earlier = Earlier()
        self._resumed = self._to_resume()
        if self._resumed is None:
            roots = resolve(
                arguments.sources,
                arguments.destination,
                arguments.no_target_directory,
                follow=arguments.options.dereference,
            )
            options = arguments.options._replace(umask=_umask())
            check_outputs(roots, options, arguments.errors)
            _check_digest(options)
            self._earlier = earlier_jobs(roots, options, alone=arguments.checkpoint.directory is None)
            self.arguments = arguments._replace(options=options)
            self.job = Job(os.urandom(5).hex(), 1, roots, options)
        self._signature: str | None = None
        self._unwritten = ""
        self._remarks: list[str] = []
        self._hints = list(self._earlier.told)
        """What is said too, but not with ``-q`` when all goes well."""

    def _to_resume(self) -> Resumed | None:
        """The stored job that is meant, if one is, locked for this process."""
        arguments = self.arguments
        directory = arguments.checkpoint.directory
        if arguments.asked.resume is None and (directory is None or not is_job(directory)):
            return None
        from pcopy.cli.jobs import resume, to_standard_error

        word = arguments.asked.resume if directory is None else directory + b"/"
        assert word is not None
        resumed = resume(word, to_standard_error)
        try:
            if directory is not None:
                self._refuse_different(directory, resumed)
            roots, options = as_stored(resumed)
            check_outputs(roots, options, arguments.errors)
            _check_digest(options)
            self._earlier = taken_over(resumed.job, roots, options)
        except BaseException:
            resumed.lock.close()
            raise
        self.kept = as_it_stands(resumed, arguments.checkpoint)
        return resumed

    def _refuse_different(self, directory: bytes, resumed: Resumed) -> None:
        different = resumed.job.file.differing(self._asked())
        if "SRC" in different and self._names_the_same_sources(resumed):
            different.remove("SRC")
        before = resumed.job.file.asked.get("DST")
        if "DST" in different and before and _is_same_destination(self.arguments.destination, before):
            different.remove("DST")
        if "--hash" in different and _IMPLY_A_HASH.intersection(different) and not self._names("--hash"):
            different.remove("--hash")
        if different:
            raise Refused(
                f"{shown(directory)}: holds an unfinished job with other arguments ({', '.join(different)} differ): "
                f"name another directory, or go on with it: {resuming(resumed.job.path)}"
            )

    def _names(self, option: str) -> bool:
        return any(word.partition("=")[0] == option for word in self._words)

    def _names_the_same_sources(self, resumed: Resumed) -> bool:
        """Are the sources that are given now those of the job, in other words?"""
        before, roots = resumed.job.file.asked["SRC"], as_stored(resumed)[0]
        now, follow = self.arguments.sources, self.arguments.options.dereference
        return len(now) == len(before) and all(map(partial(is_same_source, follow=follow), now, before, roots))

    def _asked(self) -> dict[str, Any]:
        arguments = self.arguments
        return asked_for(arguments.sources, arguments.destination, arguments.no_target_directory, arguments.options)

    def begin(self, ranks: int) -> None:
        """The number of ranks is known. A job that is resumed is dealt out to them; a new one may be kept."""
        arguments = self.arguments
        if self._resumed is not None:
            given = arguments.asked.given
            refuse_other_mounts(self._resumed.job.file, *as_stored(self._resumed))
            self.job, self.kept = go_on(self._resumed, ranks, arguments.checkpoint, arguments.options, given)
            self.arguments = arguments._replace(options=arguments.options._replace(umask=self.job.options.umask))
            self._remarks += self.kept.notices
            self._remarks += remove_unfinished(written_by(self.job.options._asdict()), self.job.name, self.job.run)
            _umask()
        elif arguments.checkpoint.wanted:
            self._keep()
        if self.kept and (own := places_in(self.kept.keeping.directory, self.job.roots)):
            self.job = self.job._replace(own=own)
            self._hints.append(f"{shown(self.kept.keeping.directory)}: is this job's own directory, and not copied")

    def _keep(self) -> None:
        try:
            refuse_unsynced(self.job.roots)
        except Refused as refused:
            self._remarks.append(f"no checkpoints, the job goes on without: {refused}")
        else:
            self.job, self.kept = keep_new(self.job, self.arguments.checkpoint, self._asked())

    @property
    def keeping(self) -> Keeping:
        """What all ranks have to know of how the job is kept."""
        return self.kept.keeping if self.kept else unkept(self.arguments.checkpoint)

    def announce(self) -> None:
        """The first line of output: what is copied where."""
        if not self.arguments.quiet:
            roots = self.job.roots
            targets = {target_of(root) for root in roots} if len(roots) == 1 else {roots[0].target}
            sources = shown(roots[0].source_shown) if len(roots) == 1 else f"{len(roots)} sources"
            stream = sys.stderr if self.arguments.json else sys.stdout
            print(f"{sources} -> {shown(targets.pop())}", file=stream, flush=True)
            self._remarks += self._hints
        while self._remarks:
            tell("pcopy", self._remarks.pop(0))

    def sink(self, screen: Sink) -> Sink:
        """Where the job tells what happens: the screen, with more if the user wants more."""
        return Verbose(screen) if self.arguments.verbose and not self.arguments.quiet else screen

    def settle(self, sign: SignState, totals: Totals) -> int:
        """Writes the signature; a copy without the one that was asked for is not complete."""
        if not self.job.options.signs:
            return OK
        if totals.extra or holds_more(self.job.roots):
            self._remarks.append("DST holds more than the source: what is there will not match the signature")
        if sign.unwritten is not None:
            self._unwritten = unwritten("manifest", self.job.options.manifest, sign.unwritten)
            return INCOMPLETE
        digest, tally = sign.signatures[0]
        sources = [root.source_shown for root in self.job.roots]
        self._unwritten = write_result(self.job, digest, tally, sources)
        if self._unwritten:
            return INCOMPLETE
        self._signature = digest.hex()
        return OK

    @property
    def _before(self) -> int | None:
        """Bytes that earlier runs have copied; None if there were none."""
        keeping = self.keeping
        return Totals(*keeping.counts).bytes if keeping.resumed else None

    def tell_end(self, ended: Ended, ranks: int) -> int:
        """Prints the summary; returns the exit status."""
        seconds = time.monotonic() - self.began
        if ended.halted is not None:
            tell("pcopy", told(ended.halted))
        is_quiet = self.arguments.quiet and ended.status == OK
        if self.arguments.quiet and not is_quiet:
            self._remarks = self._hints + self._remarks
        for remark in filter(None, (*self._remarks, self._unwritten)):
            tell("pcopy", remark)
        if self.job.options.signs and self._signature is None and not self._unwritten:
            print("pcopy: no signature or manifest was written, since not everything is there", file=sys.stderr)
        if self.arguments.json:
            print(
                summary_json(
                    ended.totals, seconds, ranks, ended.status, self._signature, self._job_name(ended), self._before
                ),
                flush=True,
            )
        elif not is_quiet:
            lines = summary_lines(ended.totals, seconds, ranks, ended.status, self._before)
            if self._unwritten:
                lines[-1] = "incomplete: everything is copied, but not all is written that tells of it (status 1)"
            if self._signature:
                lines.append(f"signature {self._signature} ({self.job.options.hash})")
            print("\n".join(lines), flush=True)
        self._tell_of_job(ended)
        return ended.status

    def _tell_of_job(self, ended: Ended) -> None:
        if ended.status == OK and self._earlier.superseded:
            self._discard_superseded()
        if self.kept is None:
            return
        patience = None if ended.halted is None or status_of(ended.halted) is None else END_PATIENCE
        try:
            for remark in self.kept.end(ended.status, ended.totals, patience):
                tell("pcopy", remark)
        except Refused as refused:
            tell("pcopy", refused)
        except OSError as error:
            tell("pcopy", f"the job's directory may be left: {hindrance(error)}")
        if ended.status != OK:
            self._tell_command()

    def _discard_superseded(self) -> None:
        from pcopy.cli.jobs import discard_superseded
        from pcopy.cli.leftovers import remove_temporaries

        discard_superseded(self._earlier.superseded, remove_temporaries, partial(tell, "pcopy"))

    def _job_name(self, ended: Ended) -> str | None:
        """The job that is kept, if it is."""
        return self.job.name if ended.status != OK and self.kept is not None and self.kept.is_stored else None

    def tell_how_to_go_on(self) -> None:
        """After an end that left something to do."""
        if self.kept is not None:
            self.kept.look()
        self._tell_command()

    def _tell_command(self) -> None:
        if self.kept is not None and self.kept.is_stored:
            tell("pcopy", f"to go on: {self.kept.command}")
        elif self.kept is not None:
            gone = f"{shown(self.kept.keeping.directory)}: the job is gone"
            why = gone if self.kept.has_vanished else "no checkpoint was stored"
            tell("pcopy", f"{why}: start it again{self._with_other_words()}")

    def _with_other_words(self) -> str:
        """The command that means now what the one that was given meant, if that means something else by now.

        A directory that was copied to an absent DST is there now, and would be copied into it.
        """
        arguments = self.arguments
        if self._resumed is not None:
            return ""
        try:
            roots = resolve(
                arguments.sources,
                arguments.destination,
                arguments.no_target_directory,
                follow=arguments.options.dereference,
            )
        except Refused:  # it will say why
            return ""
        if target_of(roots[0]) == target_of(self.job.roots[0]):
            return ""
        words = ["pcopy", "--no-target-directory", *(for_shell(os.fsencode(word)) for word in self._words)]
        return f" as {' '.join(words)}, since {shown(arguments.destination)} is there now"


def _check_digest(options: Options) -> None:
    """Raises ``ImportError`` or ``Refused`` where the library of the digests is not there, before anything is told."""
    if options.hash:
        algorithm(options.hash)


def _is_same_destination(path: bytes, given: bytes) -> bool:
    """Does ``path`` mean what ``given`` does, in other words? That is the same name in the same directory."""
    return _place(path) == _place(given)


def _place(path: bytes) -> tuple[bytes, bytes]:
    """The directory, without links on the way to it, and the name there; a link of that name is not followed."""
    stem = path.rstrip(b"/") or b"/"
    if os.path.basename(stem) in {b".", b".."}:
        stem = os.path.realpath(stem)
    return os.path.realpath(os.path.dirname(stem)), os.path.basename(stem)


def _umask() -> int:
    """The user's umask. From now on what pcopy makes is nobody else's until it is finished."""
    return os.umask(0o077)
