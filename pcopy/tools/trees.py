"""Base class of the jobs of programs that have only one tree, without a copy of it (``prm``, ``pchmod``, ``pstripe``,
``pwalk``): it handles their paths and their final output.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pcopy.errors import EXIT_INCOMPLETE, EXIT_OK
from pcopy.jobs.paths import source_path
from pcopy.jobs.spool import TMPDIR_ADVICE, spool_errors_as_refusal, spool_factory
from pcopy.jobs.suggestions import suggestion_for_missing_path
from pcopy.launch.tool import JobResult
from pcopy.tasks.base.job import REPORT_ALL_ITEMS, Failure, Job, JobCounters, ProgramOptions, ProgressSink, Root
from pcopy.tasks.base.rank import Rank
from pcopy.tools.arguments import TreeProgramArguments
from pcopy.tools.final_output import UnrecordedJob, output_options_for_dry_run
from pcopy.tools.outputs import check_output_files

if TYPE_CHECKING:
    from pcopy.jobs.sorted_list import SortedPathList


class TreeJob(UnrecordedJob):
    """The job, on rank 0, of a program that removes, changes or examines trees without copying them.

    A path that does not exist counts as a failed item; the other paths are processed all the same.
    """

    item_verb: str
    """Participle for messages, which says what is done to trees, for example ``removed``."""

    def __init__(self, tree: TreeProgramArguments) -> None:
        output_options = tree.output
        dry_run = tree.options.dry_run
        if dry_run:
            output_options = output_options_for_dry_run(output_options)
        super().__init__(tree.ranks, tree.in_flight, output_options, dry_run=dry_run)
        self.tree = tree
        self._missing_paths: list[Failure] = []
        """One failure for each path of the command line that does not exist or cannot be statted."""
        self.path_list: SortedPathList | None = None
        """The list of ``--from``; None without that option."""

    def existing_roots(
        self, make_root: Callable[[bytes], Root], *, missing_is_fine: bool = False, unique: bool = True
    ) -> tuple[Root, ...]:
        """Return the roots of those paths of the command line that exist, and record the others as missing.

        Args:
            make_root: returns the root of a path. It raises ``OSError`` if the path does not exist, and
                ``RequestRefused`` if the path must not be processed, which ends the program.
            missing_is_fine: True if a path that does not exist is not a failure.
            unique: True if an item that is named by several paths is returned once only.
        """
        found: dict[object, Root] = {}
        for path in self.tree.paths:
            try:
                root = make_root(path)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR) or not missing_is_fine:
                    self._missing_paths.append(_missing_path_failure(path, error))
            else:
                found.setdefault((root.source_id, root.item) if unique else len(found), root)
        return tuple(found.values())

    def read_path_list(
        self, check: Callable[[bytes], str] = lambda path: "", *, whole: bool = False
    ) -> tuple[Root, ...]:
        """Read the list of ``--from`` into ``path_list``. Return the only root, a directory that contains all listed
        paths; an empty tuple if the list is empty.

        Args:
            check: gets an absolute path, and returns why it must not be listed, or "".
            whole: True if listed directories are processed with all their contents; then listed paths below a listed
                directory are left out.

        Raise ``RequestRefused`` if the list cannot be used.
        """
        from pcopy.jobs.sorted_list import existing_base_directory, sorted_paths_to_modify

        tree = self.tree
        base = existing_base_directory(tree.paths[0]) if tree.paths else None
        spool = spool_factory(b"")
        with spool_errors_as_refusal(b"", TMPDIR_ADVICE):
            self.path_list = sorted_paths_to_modify(
                tree.list_file, spool, nul=tree.nul_separated, base=base, check=check, omit_below_listed=whole
            )
        return () if self.path_list is None else (self.path_list.root,)

    def make_job_for_roots(
        self, roots: tuple[Root, ...], *, copies: bool, program: ProgramOptions | None = None, **options: Any
    ) -> None:
        """Create the job for ``roots``, and start its clock. Raise ``RequestRefused`` if an output file cannot be
        written.

        Args:
            roots: the roots, on whose sources the program works.
            copies: True if the program also works on their targets.
            program: the options of the program.
            options: fields of ``Options`` that differ from the command line.
        """
        check_output_files(self.output, () if self.path_list else roots, f"is {self.item_verb}")
        itemize = REPORT_ALL_ITEMS if self.prints_items else self.output.reported_items
        common = self.tree.options._replace(itemize=itemize)
        self.job = Job(os.urandom(5).hex(), 1, roots, common._replace(**options), program, copies=copies)
        if self.path_list is not None:
            from pcopy.jobs.sorted_list import proc_path_of_descriptor

            self.job = self.job._replace(
                listed=proc_path_of_descriptor(self.path_list.file), listed_record_size=self.path_list.record_size
            )
        self.began = time.monotonic()

    def job_event_sink(self, screen: ProgressSink) -> ProgressSink:
        """Return the receiver of progress and outcomes, which passes them on to ``screen``.

        Before, report the paths of the command line that do not exist to ``screen``.
        """
        if self._missing_paths:
            screen.receive_failures(self._missing_paths)
        return super().job_event_sink(screen)

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        return EXIT_INCOMPLETE if self._missing_paths else EXIT_OK

    def closing_lines(self) -> list[str]:
        missing = sum(each.errno == errno.ENOENT for each in self._missing_paths)
        if not missing:
            return super().closing_lines()
        paths = "path of the command line that does" if missing == 1 else "paths of the command line that do"
        return [*super().closing_lines(), f"  found and failed include {missing:,} {paths} not exist"]

    def report_job_result(self, ended: JobResult, ranks: int) -> int:
        missing, totals = len(self._missing_paths), ended.totals
        totals = totals._replace(found=totals.found + missing, failed=totals.failed + missing)
        return super().report_job_result(ended._replace(totals=totals), ranks)


def roots_outside_other_roots(roots: Sequence[Root]) -> tuple[Root, ...]:
    """Return those of ``roots`` that do not lie inside another one of them.

    Otherwise items would be processed twice, perhaps by two ranks at the same time.
    """
    places = {source_path(root): root for root in roots}
    return tuple(root for place, root in places.items() if places.keys().isdisjoint(_directories_above(place)))


def _directories_above(path: bytes) -> Iterator[bytes]:
    """Yield the paths of all directories above ``path``, the nearest first."""
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _missing_path_failure(path: bytes, error: OSError) -> Failure:
    """Return the failure for a path of the command line that does not exist or cannot be statted."""
    advice = suggestion_for_missing_path(path) if error.errno == errno.ENOENT else ""
    return Failure(path, "stat", error.errno or errno.EIO, advice)
