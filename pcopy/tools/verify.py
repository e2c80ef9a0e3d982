"""``pverify``: compare trees, signatures and manifests. All ranks load this module; rank 0 checks the arguments and
reports the result.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable
from types import MappingProxyType

from pcopy.errors import DIFFERENT, OK, REFUSED, Refused
from pcopy.jobs.path_read import root_read, unlookable
from pcopy.jobs.paths import absolute
from pcopy.jobs.spool import SET_ANOTHER
from pcopy.launch.tool import Ended, Preparation, Settle, Tool
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.signature.items import ROOT, SYMLINK
from pcopy.signature.manifest import ManifestReader, begins_as_manifest
from pcopy.signature.signature_file import LOOK, Signature, begins_as_signature, is_cut_signature, read_signature
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job, Options, Totals
from pcopy.tasks.base.phases import Phase, phase_name
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.copying import visitor_of
from pcopy.tasks.sign.children import Tally
from pcopy.tasks.sign.signing import SignState
from pcopy.text import counted, for_shell, shown
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.director import STAGES, JobDirector
from pcopy.tools.ending import ReadPreparation
from pcopy.tools.outputs import check_outputs, umask_of_user, write_result
from pcopy.tools.summary import summary_values
from pcopy.units import show_seconds, show_size

_COUNTED = ("files", "directories", "symlinks", "special", "bytes", "failed")
"""Counters of ``Totals`` that ``--json`` shows."""


class Verify(Tool):
    """The program ``pverify``."""

    name = "pverify"
    writes = False
    unfinished = REFUSED
    spool_advice = SET_ANOTHER
    stages = STAGES
    done = "read"
    meanings = MappingProxyType({**Tool.meanings, OK: "the same", DIFFERENT: "different"})
    visitor = staticmethod(visitor_of)

    @staticmethod
    def director(rank: Rank, settle: Settle, unfinished: int) -> JobDirector:
        """Create the director of the job; there is another one for ``--compare``."""
        if not rank.options.compare:
            return JobDirector(rank, settle, unfinished)
        from pcopy.tools.compare import CompareDirector

        return CompareDirector(rank, settle, unfinished)

    def first_counts(self, job: Job) -> list[int]:
        """Return the counters before the first task. With ``--compare``, both trees are walked side by side, and the
        roots are counted when they are compared.
        """
        return [0] * counts.COUNTERS if job.options.compare else super().first_counts(job)

    def phase_name(self, phase: int) -> str:
        return phase_name(phase) if phase >= Phase.SIGN else "read"


VERIFY = Verify()
"""The only instance of ``Verify``."""


def prepared(arguments: VerifyArguments) -> Preparation:
    """Return the job for a command line. Raise ``Refused`` if it must not start; nothing is written."""
    if arguments.comparison is None:
        return VerifyPreparation(arguments)
    from pcopy.tools.compare import ComparePreparation

    return ComparePreparation(arguments)


class VerifyPreparation(ReadPreparation):
    """The job of ``pverify`` without ``--compare`` on rank 0."""

    unread = "read: the result is unknown"

    def __init__(self, arguments: VerifyArguments) -> None:
        """Check the arguments and prepare the job. Raise ``Refused`` if nothing can be compared; nothing is written."""
        super().__init__(arguments)
        self.arguments = arguments
        self._expected: Signature | None = None
        self._of_link = False  # True if the signature or manifest describes a single symbolic link.
        self._found: str | None = None
        self._differences = {"changed": 0, "missing": 0, "extra": 0}
        paths, options, against = self._compared(arguments)
        self.counted_of = " of A and B together" if len(paths) > 1 else ""
        roots = tuple(root_read(path, follow=not self._of_link) for path in paths)
        check_outputs(roots, options, arguments.telling, copies=False)
        if arguments.create and not arguments.force:
            for path in filter(os.path.lexists, (arguments.create, arguments.manifest)):
                raise Refused(f"{shown(path)}: already exists and is not replaced; --force replaces it")
        self.job = Job(os.urandom(5).hex(), 1, roots, options, copies=False, against=against)

    def _compared(self, arguments: VerifyArguments) -> tuple[tuple[bytes, ...], Options, bytes]:
        """Return the paths to be read, the options for reading them, and the manifest that they are compared with, or
        empty.
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
                given = f"pverify --create SIGNATURE {for_shell(arguments.create)}"
                raise Refused(f"{shown(arguments.create)}: is a directory; name the file to be written: {given}")
            manifest = absolute(arguments.manifest) if arguments.manifest else b""
            options = options._replace(signature=absolute(arguments.create), manifest=manifest)
        elif arguments.manifest:
            _check_manifest(arguments.manifest, paths[0])
            reader = ManifestReader(arguments.manifest)
            options = _as_told(user_options, options, reader.algorithm.name, reader.block_size, arguments.manifest)
            self._of_link = reader.first().kind == SYMLINK
            against = absolute(arguments.manifest)
        elif _is_signature(*paths):
            expected = self._expected = read_signature(paths[0])
            other_items = expected.files + expected.directories + expected.special
            self._of_link = expected.symlinks == 1 and not other_items
            options = _as_told(user_options, options, expected.algorithm, expected.block_size, paths[0])
            paths = paths[1:]
        return paths, options, against

    def settle(self, rank: Rank, totals: Totals) -> int:
        """Compare the signatures, print the differences, or write the signature of ``--create``. Return the exit
        status.
        """
        if self._lacks_items(totals):
            return REFUSED
        sign = rank.own(SignState)
        digest, tally = sign.signatures[0]
        self._found = digest.hex()
        if self.arguments.create:
            trouble = write_result(self.job, sign)
            if trouble:
                self._remarks.append(trouble)
            return REFUSED if trouble else OK
        if self._expected is not None:
            return self._compared_with(self._expected, tally)
        if digest == sign.signatures[1][0]:
            return self._compared_sizes(tally, sign.signatures[1][1])
        for key, packed_word in sign.differences.sorted():
            word = packed_word.decode()
            if self.job.against:  # The manifest is the second side, but the reference: its items are the expected ones.
                word = {"missing": "extra", "extra": "missing"}.get(word, word)
            self._tell_difference(word, key.replace(b"\0", b"/") or ROOT)
        return DIFFERENT

    def _compared_with(self, expected: Signature, tally: Tally) -> int:
        """Compare with the expected signature and return the exit status. Counts that contradict an equal digest mean
        that the signature file is damaged.
        """
        if self._found != expected.signature:
            return DIFFERENT
        wrong = [
            f"{counter}: {listed:,} in the file, {found:,} found"
            for counter, found in tally._asdict().items()
            if (listed := getattr(expected, counter)) != found
        ]
        if not wrong:
            return OK
        file = shown(self.arguments.paths[0])
        self._remarks.append(f"{file}: is damaged: its digest fits the data, but not its counters: {', '.join(wrong)}")
        return REFUSED

    def _compared_sizes(self, found: Tally, listed: Tally) -> int:
        """Compare the sums of sizes after all digests were found equal, and return the exit status.

        Equal digests imply equal sizes. So other sizes in a manifest mean that it is damaged.
        """
        if not self.job.against or found == listed:
            return OK
        self._remarks.append(
            f"{shown(self.arguments.manifest)}: is damaged: all digests fit the data, but not the sizes: "
            f"{listed.bytes:,} bytes in the manifest and {found.bytes:,} found"
        )
        return REFUSED

    def _tell_difference(self, kind: str, path: bytes) -> None:
        """Print a difference, as a line or as JSON."""
        self._differences[kind] += 1
        if self.telling.json:
            exact = base64.b64encode(path).decode("ascii")
            print(json.dumps({"difference": kind, "path": shown(path), "path_b64": exact}))
        else:
            print(f"{kind} {shown(path)}")

    def _lines(self, ended: Ended, elapsed: float) -> list[str]:
        lines = []
        if ended.status == OK:
            lines.append("created" if self.arguments.create else "the same")
        elif ended.status == DIFFERENT:
            counts = [f"{number:,} {kind}" for kind, number in self._differences.items() if number]
            lines.append(": ".join(filter(None, ("different", ", ".join(counts)))))
        if self._expected is not None and self._found not in (None, self._expected.signature):
            lines.append(f"expected signature {self._expected.signature}")
        if self._found is not None and len(self.job.roots) == 1 and not self.job.against:
            lines.append(f"signature {self._found} ({self.job.options.hash})")
        if ended.halted is None:  # Otherwise the counters are incomplete; only the reason is printed.
            size = ended.totals.bytes
            rate = size / elapsed if elapsed > 0 else 0
            items = counted(ended.totals.copied, "item", "items")
            lines.append(f"{items} of {show_size(size)} in {show_seconds(elapsed)}: {show_size(rate)}/s")
        return lines

    def _summary(self, ended: Ended, elapsed: float, ranks: int) -> dict[str, object]:
        return {
            "same": {OK: True, DIFFERENT: False}.get(ended.status) if not self.arguments.create else None,
            "signature": self._found,
            "expected": self._expected.signature if self._expected else None,
            **self._differences,
            **summary_values(ended.totals, _COUNTED, elapsed, ranks, ended.status),
            "bytes_per_second": round(ended.totals.bytes / elapsed) if elapsed > 0 else 0,
        }


def _is_signature(first: bytes, second: bytes) -> bool:
    """True if the first path is a signature file with which the second one is compared. If not, the two paths are
    compared with each other.

    A file that is compared with a directory must be a signature. Raise ``Refused`` if the paths seem to be given in the
    wrong way.
    """
    try:
        mode = os.stat(first).st_mode
        is_file, against_tree = stat.S_ISREG(mode), not stat.S_ISDIR(mode) and os.path.isdir(second)
        beginning = _beginning(first) if is_file else b""
    except OSError as error:
        raise unlookable(first, error) from None
    if against_tree and not is_file:
        raise Refused(f"{shown(first)}: is no regular file; put the signature into one")
    if begins_as_signature(beginning):
        return True
    if _begins_with(second, begins_as_signature):
        given = _given(second, first)
        raise Refused(f"{shown(second)}: is a signature, which comes before what is compared with it: {given}")
    if os.path.isdir(first) and _begins_with(second, begins_as_manifest):
        raise Refused(f"{shown(second)}: is a manifest; compare with it by {_given(b'--manifest', second, first)}")
    if begins_as_manifest(beginning):
        if against_tree or not _begins_with(second, begins_as_manifest):
            raise Refused(f"{shown(first)}: is a manifest; compare with it by {_given(b'--manifest', first, second)}")
        return False
    if is_cut_signature(beginning):
        return not _begins_with(second, lambda other: other.startswith(beginning))
    return against_tree


def _beginning(path: bytes) -> bytes:
    """Return the first bytes of a file, by which a signature or manifest is recognised; empty if it is not a regular
    file.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "rb") as file:
        is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return file.read(LOOK) if is_regular else b""


def _begins_with(path: bytes, holds: Callable[[bytes], bool]) -> bool:
    """True if ``path`` is a regular file and ``holds`` returns True for its first bytes. False if it cannot be read:
    reading it later reports the error.
    """
    try:
        return stat.S_ISREG(os.stat(path).st_mode) and holds(_beginning(path))
    except OSError:
        return False


def _given(*words: bytes) -> str:
    """Return a command of ``pverify`` for advice."""
    return " ".join(["pverify", *map(for_shell, words)])


def _check_manifest(manifest: bytes, path: bytes) -> None:
    """Raise ``Refused`` if the file is not a manifest, or cannot be read twice, such as a pipe."""
    try:
        mode = os.stat(manifest).st_mode
    except OSError:
        return  # Reading it reports the error.
    if _begins_with(manifest, begins_as_signature):
        raise Refused(f"{shown(manifest)}: is a signature; compare with it by {_given(manifest, path)}")
    if _begins_with(path, begins_as_manifest) and not _begins_with(manifest, begins_as_manifest):
        given = _given(b"--manifest", path, manifest)
        raise Refused(f"{shown(path)}: is the manifest, which comes before what is compared with it: {given}")
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise Refused(f"{shown(manifest)}: is no regular file; put the manifest into one")


def _as_told(given: Options, options: Options, name: str, size: int, path: bytes) -> Options:
    """Return ``options`` with the algorithm and block size of the file ``path``. Raise ``Refused`` if the user asked
    for other ones.
    """
    for option, requested, in_file in (("--hash", given.hash, name), ("--block-size", given.block_size, size)):
        if requested and requested != in_file:
            raise Refused(f"{option} {requested}: {shown(path)} was made with {in_file}; leave the option out")
    return options._replace(hash=name, block_size=size)
