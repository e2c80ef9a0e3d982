"""``pverify``: compare trees, signatures and manifests. All ranks load this module; rank 0 checks the arguments and
reports the result.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
from collections.abc import Callable
from types import MappingProxyType

from pcopy.errors import EXIT_DIFFERENT, EXIT_OK, EXIT_REFUSED, RequestRefused, path_refused
from pcopy.jobs.paths import absolute_path
from pcopy.jobs.source_argument import cannot_examine_error, root_for_reading
from pcopy.jobs.spool import TMPDIR_ADVICE
from pcopy.launch.tool import CompleteJob, JobResult, PreparedJob, Tool
from pcopy.report.progress_gauge import StagesByPhase
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.signature.items import ROOT_PATH, SYMLINK
from pcopy.signature.manifest import ManifestReader, looks_like_manifest
from pcopy.signature.signature_file import (
    RECOGNITION_SIZE,
    DatasetSignature,
    is_truncated_signature,
    looks_like_signature,
    read_signature,
)
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import CompareOptions, Job, JobCounters, Options
from pcopy.tasks.base.phases import Phase, phase_name
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.copying import make_visitor
from pcopy.tasks.sign.children import DatasetCounts
from pcopy.tasks.sign.signing import SignatureState
from pcopy.text import count_with_noun, printable_path, shell_quoted
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.director import JOB_STAGES, PAIR_STAGES, JobDirector
from pcopy.tools.final_output import VerifyJobBase
from pcopy.tools.outputs import check_output_and_signature_files, umask_of_user, write_signature_file
from pcopy.tools.summary import common_json_values
from pcopy.tools.verify_pairs import PairDirector, can_compare_side_by_side, counts_of_sides, differences_of_pairs
from pcopy.units import format_seconds, format_size

_SHOWN_COUNTERS = ("files", "directories", "symlinks", "special", "bytes", "failed")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows."""


class VerifyTool(Tool):
    """The program ``pverify``."""

    name = "pverify"
    writes_to_targets = False
    unfinished_status = EXIT_REFUSED
    spool_advice = TMPDIR_ADVICE
    stages = JOB_STAGES
    done_word = "read"
    status_meanings = MappingProxyType({**Tool.status_meanings, EXIT_OK: "the same", EXIT_DIFFERENT: "different"})
    make_visitor = staticmethod(make_visitor)

    @staticmethod
    def make_director(rank: Rank, complete: CompleteJob, unfinished: int) -> JobDirector:
        """Return the director of the job (the object on rank 0 that chooses phases and exit status): a
        ``CompareDirector`` with ``--compare``, a ``PairDirector`` for two directories that are compared side by side
        without it, else a ``JobDirector``.
        """
        if rank.job.compares_by_digest:
            return PairDirector(rank, complete, unfinished)
        if not rank.job.compares_properties:
            return JobDirector(rank, complete, unfinished)
        from pcopy.tools.compare import CompareDirector

        return CompareDirector(rank, complete, unfinished)

    def stages_of_job(self, job: Job) -> StagesByPhase:
        """Return the stages: if two trees are read, an item and its counterpart are counted once."""
        return PAIR_STAGES if len(job.roots) > 1 and not job.compares_properties else self.stages

    def initial_counts(self, job: Job) -> list[int]:
        """Return the counters (``JobCounters``) before the first task. Without ``--compare``, directories that are
        roots count as found. With ``--compare``, all counters are 0: both trees are walked side by side, and the roots
        are counted when they are compared.
        """
        return [0] * counts.NUMBER_OF_COUNTERS if job.compares_properties else super().initial_counts(job)

    def phase_name(self, phase: int) -> str:
        return phase_name(phase) if phase >= Phase.SIGN else "read"


VERIFY_TOOL = VerifyTool()
"""The only instance of ``VerifyTool``."""


def prepared_verification_job(arguments: VerifyArguments) -> PreparedJob:
    """Return the job for a command line; nothing is written. Raise ``RequestRefused`` if the job must not start."""
    if arguments.comparison is None:
        return VerifyJob(arguments)
    from pcopy.tools.compare import CompareJob

    return CompareJob(arguments)


class VerifyJob(VerifyJobBase):
    """The job of ``pverify`` without ``--compare``, on rank 0: compares digests of trees, signatures and manifests."""

    failed_text = "read: the result is unknown"

    def __init__(self, arguments: VerifyArguments) -> None:
        """Check the arguments and prepare the job. Raise ``RequestRefused`` if nothing can be compared; nothing is
        written.
        """
        super().__init__(arguments)
        self.arguments = arguments
        self._expected: DatasetSignature | None = None
        self._describes_link = False  # True if the signature or manifest describes only a symbolic link.
        self._found_signature: str | None = None
        self._tallies: list[DatasetCounts] = []
        """The numbers of items and bytes of each tree that was read; empty until the trees are compared."""
        self._differences = {"changed": 0, "missing": 0, "extra": 0}
        paths, options, against = self._verified_paths_and_options(arguments)
        self.excluded_suffix = " of A and B together" if len(paths) > 1 else ""
        roots = tuple(root_for_reading(path, follow=not self._describes_link) for path in paths)
        if len({bool(root.item) for root in roots}) > 1:  # the name of a file; empty for a directory
            raise RequestRefused(f"{_types_of_paths_text(*paths)}; {_PAIR_ADVICE}", path=paths[0])
        check_output_and_signature_files(roots, options, arguments.output, copies=False)
        if arguments.create and not arguments.force:
            for path in filter(os.path.lexists, (arguments.create, arguments.manifest)):
                raise path_refused(path, "already exists and is not replaced; --force replaces it", code=errno.EEXIST)
        program = CompareOptions(by_digest=True) if can_compare_side_by_side(arguments) else None
        self.job = Job(os.urandom(5).hex(), 1, roots, options, program, copies=False, against=against)

    def _verified_paths_and_options(self, arguments: VerifyArguments) -> tuple[tuple[bytes, ...], Options, bytes]:
        """Return the paths of the trees to be read, the options for reading them, and the absolute path of the manifest
        with which the tree is compared (empty: none).
        """
        user_options = arguments.options
        options = user_options._replace(
            hash=user_options.hash or DEFAULT_ALGORITHM,
            block_size=user_options.block_size or Options().block_size,
            umask=umask_of_user(),
        )
        paths, against = arguments.paths, b""
        if arguments.create:
            if os.path.isdir(arguments.create) and not os.path.isdir(paths[0]):
                given = f"pverify --create SIGNATURE {shell_quoted(arguments.create)}"
                raise path_refused(arguments.create, f"is a directory; name the file to be written: {given}")
            manifest = absolute_path(arguments.manifest) if arguments.manifest else b""
            options = options._replace(signature=absolute_path(arguments.create), manifest=manifest)
        elif arguments.manifest:
            _check_manifest_argument(arguments.manifest, paths[0])
            reader = ManifestReader(arguments.manifest)
            options = _options_with_hash_of_file(
                user_options, options, reader.algorithm.name, reader.block_size, arguments.manifest
            )
            self._describes_link = reader.root_entry().kind == SYMLINK
            against = absolute_path(arguments.manifest)
        elif _is_first_path_a_signature_file(*paths):
            expected = self._expected = read_signature(paths[0])
            other_items = expected.files + expected.directories + expected.special
            self._describes_link = expected.symlinks == 1 and not other_items
            options = _options_with_hash_of_file(
                user_options, options, expected.algorithm, expected.block_size, paths[0]
            )
            paths = paths[1:]
        return paths, options, against

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        """Return the exit status, after writing the signature of ``--create``, or after comparing the signatures and
        printing the differences.
        """
        if self._note_if_everything_excluded(totals):
            return EXIT_REFUSED
        sign = rank.shared_instance(SignatureState)
        if self.job.compares_by_digest:
            self._tallies = counts_of_sides(sign, totals)
            for word, path in differences_of_pairs(rank):
                self._print_difference(word, path)
            return EXIT_DIFFERENT if any(self._differences.values()) else EXIT_OK
        digest, tally = sign.signatures[0]
        self._found_signature = digest.hex()
        self._tallies = [sign.signatures[side][1] for side in range(len(self.job.roots))]
        if self.arguments.create:
            trouble = write_signature_file(self.job, sign)
            if trouble:
                self._remarks.append(trouble)
            return EXIT_REFUSED if trouble else EXIT_OK
        if self._expected is not None:
            return self._compare_with_signature(self._expected, tally)
        if digest == sign.signatures[1][0]:
            return self._compare_counts_with_manifest(tally, sign.signatures[1][1])
        for key, packed_word in sign.differences.sorted():
            word = packed_word.decode()
            if self.job.against:  # The manifest is the second side, but the reference: its items are the expected ones.
                word = {"missing": "extra", "extra": "missing"}.get(word, word)
            self._print_difference(word, key.replace(b"\0", b"/") or ROOT_PATH)
        return EXIT_DIFFERENT

    def _compare_with_signature(self, expected: DatasetSignature, tally: DatasetCounts) -> int:
        """Compare the signature of the tree with the expected one, and return the exit status.

        If the digests are equal but the counts are not, the signature file is damaged, and the status is that of a
        refusal.

        Args:
            expected: the contents of the signature file.
            tally: the counts of files, directories, bytes and so on in the tree.
        """
        if self._found_signature != expected.signature:
            return EXIT_DIFFERENT
        wrong = [
            f"{counter}: {listed:,} in the file, {found:,} found"
            for counter, found in tally._asdict().items()
            if (listed := getattr(expected, counter)) != found
        ]
        if not wrong:
            return EXIT_OK
        file = printable_path(self.arguments.paths[0])
        self._remarks.append(f"{file}: is damaged: its digest fits the data, but not its counters: {', '.join(wrong)}")
        return EXIT_REFUSED

    def _compare_counts_with_manifest(self, found: DatasetCounts, listed: DatasetCounts) -> int:
        """Compare the numbers of items and bytes in the tree with those in its manifest, and return the exit status.

        The digests of both were found equal. Items with equal digests have equal sizes. So if the sizes in a manifest
        are different, the manifest is damaged.

        Args:
            found: the numbers in the tree.
            listed: the numbers in the manifest; nothing is compared if there is no manifest.
        """
        if not self.job.against or found == listed:
            return EXIT_OK
        self._remarks.append(
            f"{printable_path(self.arguments.manifest)}: is damaged: all digests fit the data, but not the sizes: "
            f"{listed.bytes:,} bytes in the manifest and {found.bytes:,} found"
        )
        return EXIT_REFUSED

    def _print_difference(self, kind: str, path: bytes) -> None:
        """Print a difference on standard output, as a line or, with ``--json``, as a JSON object.

        Args:
            kind: "changed", "missing" or "extra".
        """
        self._differences[kind] += 1
        if self.output.json:
            exact = base64.b64encode(path).decode("ascii")
            print(json.dumps({"difference": kind, "path": printable_path(path), "path_b64": exact}))
        else:
            print(f"{kind} {printable_path(path)}")

    def _summary_lines(self, ended: JobResult, elapsed: float) -> list[str]:
        lines = []
        if ended.status == EXIT_OK:
            lines.append("created" if self.arguments.create else "the same")
        elif ended.status == EXIT_DIFFERENT:
            counts = [f"{number:,} {kind}" for kind, number in self._differences.items() if number]
            lines.append(": ".join(filter(None, ("different", ", ".join(counts)))))
        if self._expected is not None and self._found_signature not in (None, self._expected.signature):
            lines.append(f"expected signature {self._expected.signature}")
        if self._found_signature is not None and len(self.job.roots) == 1 and not self.job.against:
            lines.append(f"signature {self._found_signature} ({self.job.options.hash})")
        if ended.halt is None:  # Otherwise the counters are incomplete; only the reason is printed.
            rate = ended.totals.bytes / len(self.job.roots) / elapsed if elapsed > 0 else 0
            lines.append(f"{self._read_items_text(ended.totals)} in {format_seconds(elapsed)}: {format_size(rate)}/s")
        return lines

    def _read_items_text(self, totals: JobCounters) -> str:
        """Return how many items of how many bytes were read. If two trees hold the same, an item and its counterpart
        are counted once; if they differ, each tree has its own numbers.
        """
        together = items_of_size_text(totals.copied, totals.bytes)
        if len(self.job.roots) == 1:
            return together
        if not self._tallies:  # Something could not be read.
            return f"{together} in A and B together"
        first, second = self._tallies
        if first == second:
            return items_of_size_text((totals.copied + 1) // 2, first.bytes)
        texts = [items_of_size_text(sum(tally) - tally.bytes, tally.bytes) for tally in (first, second)]
        return f"{texts[0]} in A and {texts[1]} in B,"

    def _json_summary(self, ended: JobResult, elapsed: float, ranks: int) -> dict[str, object]:
        return {
            "same": {EXIT_OK: True, EXIT_DIFFERENT: False}.get(ended.status) if not self.arguments.create else None,
            "signature": self._found_signature,
            "expected": self._expected.signature if self._expected else None,
            **self._differences,
            **common_json_values(ended.totals, _SHOWN_COUNTERS, elapsed, ranks, ended.status),
            "bytes_per_second": round(ended.totals.bytes / elapsed) if elapsed > 0 else 0,
        }


def items_of_size_text(items: int, size: int) -> str:
    """Return a text such as "7 items of 1.20 MiB"."""
    return f"{count_with_noun(items, 'item', 'items')} of {format_size(size)}"


def _is_first_path_a_signature_file(first: bytes, second: bytes) -> bool:
    """True if the first path is a signature file, and the tree at the second path is to be compared with it. False if
    both paths are trees (or files) that are to be compared with each other.

    A file that is compared with a directory must be a signature. Raise ``RequestRefused`` if the user seems to have
    given the paths in the wrong order, or to have forgotten ``--manifest``.
    """
    try:
        mode = os.stat(first).st_mode
        is_file, against_tree = stat.S_ISREG(mode), not stat.S_ISDIR(mode) and os.path.isdir(second)
        beginning = _first_bytes(first) if is_file else b""
    except OSError as error:
        raise cannot_examine_error(first, error) from None
    if against_tree and not is_file:
        raise path_refused(first, "is not a regular file; put the signature into one")
    if looks_like_signature(beginning):
        return True
    if _do_first_bytes_meet_condition(second, looks_like_signature):
        given = _pverify_command_text(second, first)
        raise path_refused(
            second, f"is a signature; name the signature first, and then what is compared with it: {given}"
        )
    if os.path.isdir(first) and _do_first_bytes_meet_condition(second, looks_like_manifest):
        raise path_refused(
            second, f"is a manifest; compare with it by {_pverify_command_text(b'--manifest', second, first)}"
        )
    if looks_like_manifest(beginning):
        if against_tree or not _do_first_bytes_meet_condition(second, looks_like_manifest):
            raise path_refused(
                first, f"is a manifest; compare with it by {_pverify_command_text(b'--manifest', first, second)}"
            )
        return False
    if is_truncated_signature(beginning):
        return not _do_first_bytes_meet_condition(second, lambda other: other.startswith(beginning))
    if against_tree:
        _refuse_file_without_signature(first, second)
    return against_tree


_PAIR_ADVICE = "name two directories, two files, or a signature (or --manifest MANIFEST) and what is compared with it"
"""What the user can do if the two paths cannot be compared."""


def _refuse_file_without_signature(first: bytes, directory: bytes) -> None:
    """Raise ``RequestRefused`` if the file ``first``, which does not begin like a signature, is none. It says what both
    paths are, since the user may have meant to compare two directories.
    """
    try:
        read_signature(first)
    except RequestRefused as refused:
        why = str(refused).partition(" as a signature file: ")[2]
        raise RequestRefused(
            f"{_types_of_paths_text(first, directory)}, and {printable_path(first)} is no signature ({why}); "
            f"{_PAIR_ADVICE}",
            path=first,
        ) from None


def _types_of_paths_text(first: bytes, second: bytes) -> str:
    """Return a text that says what the items at both paths are."""
    types = []
    for path in (first, second):
        mode = os.stat(path).st_mode
        types.append("a directory" if stat.S_ISDIR(mode) else "a file" if stat.S_ISREG(mode) else "no regular file")
    return f"{printable_path(first)} is {types[0]}, and {printable_path(second)} is {types[1]}"


def _first_bytes(path: bytes) -> bytes:
    """Return the first ``RECOGNITION_SIZE`` bytes of a file, by which a signature or manifest is recognised. Return
    nothing (b"") for anything but a regular file.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return file.read(RECOGNITION_SIZE) if is_regular else b""


def _do_first_bytes_meet_condition(path: bytes, holds: Callable[[bytes], bool]) -> bool:
    """True if ``path`` is a regular file and the function ``holds`` returns True for its first bytes.

    False also if the file cannot be read: the error is reported when it is read later.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and holds(_first_bytes(path))
    except OSError:
        return False


def _pverify_command_text(*words: bytes) -> str:
    """Return the command line of ``pverify`` with these ``words``, quoted for the shell, for advice."""
    return " ".join(["pverify", *map(shell_quoted, words)])


def _check_manifest_argument(manifest: bytes, path: bytes) -> None:
    """Raise ``RequestRefused`` if ``manifest`` is a signature, or is no regular file: a pipe could not be read twice.

    Args:
        manifest: the file of ``--manifest``.
        path: the tree that is compared with it. If that is a manifest instead, the two were confused.
    """
    try:
        mode = os.stat(manifest).st_mode
    except OSError:
        return  # The error is reported when the manifest is read.
    if _do_first_bytes_meet_condition(manifest, looks_like_signature):
        raise path_refused(manifest, f"is a signature; compare with it by {_pverify_command_text(manifest, path)}")
    if _do_first_bytes_meet_condition(path, looks_like_manifest) and not _do_first_bytes_meet_condition(
        manifest, looks_like_manifest
    ):
        given = _pverify_command_text(b"--manifest", path, manifest)
        raise path_refused(
            path, f"is the manifest; name the manifest first, and then what is compared with it: {given}"
        )
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise path_refused(manifest, "is not a regular file; put the manifest into one")


def _options_with_hash_of_file(given: Options, options: Options, name: str, size: int, path: bytes) -> Options:
    """Return ``options`` with the hash algorithm and block size with which the signature or manifest was made. Raise
    ``RequestRefused`` if the user asked for other ones.

    Args:
        given: the options that the user gave.
        options: the options with all defaults.
        name: the algorithm in the file.
        size: the block size in the file, in bytes.
        path: the signature or manifest, for the message.
    """
    for option, requested, in_file in (("--hash", given.hash, name), ("--block-size", given.block_size, size)):
        if requested and requested != in_file:
            raise RequestRefused(
                f"{option} {requested}: {printable_path(path)} was made with {in_file}; leave the option out"
            )
    return options._replace(hash=name, block_size=size)
