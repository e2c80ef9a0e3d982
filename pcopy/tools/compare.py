"""``pverify --compare``: compare two trees by chosen properties. Rank 0 prints the differences and writes the lists.

Rule: each printed line, and each path in a list of ``--output``, is correct even if other items could not be compared.
In that case the exit status says that the comparison is incomplete.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator

from pcopy.engine.messages import HaltMessage
from pcopy.engine.task import NewTask
from pcopy.errors import EXIT_DIFFERENT, EXIT_INTERNAL, EXIT_OK, EXIT_REFUSED, RequestRefused, path_refused
from pcopy.fsio.identity import ItemIdentity
from pcopy.jobs.source_argument import root_for_reading
from pcopy.launch.tool import JobResult
from pcopy.signature.algorithms import DEFAULT_ALGORITHM
from pcopy.signature.items import ROOT_PATH
from pcopy.signature.replacing import replacing_output_file
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import CompareOptions, Job, JobCounters, Options, mount_codes
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.compare_trees import CompareNamedItems
from pcopy.tasks.compare.properties import (
    CONTENT,
    ONLY_A,
    ONLY_B,
    PROPERTIES,
    REPORTS_EQUAL,
    acls_and_xattrs_to_compare,
)
from pcopy.tasks.compare.report_differences import CollectedDifferences, ItemDifference
from pcopy.text import count_with_noun, printable_path
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.director import JobDirector
from pcopy.tools.final_output import VerifyJobBase
from pcopy.tools.outputs import check_comparison_lists, check_output_and_signature_files, umask_of_user
from pcopy.tools.summary import common_json_values
from pcopy.units import format_seconds, format_size

_SHOWN_COUNTERS = ("found", "files", "directories", "symlinks", "special", "bytes", "excluded", "failed")
"""Names of the counters (fields of ``JobCounters``) that ``--json`` shows."""

_ALL_PROPERTIES = (1 << len(PROPERTIES)) - 1
"""The bits of all properties that can be compared; bit i is the property ``PROPERTIES[i]``."""
_WORDS_FOR_ONE_SIDED_ITEMS = {ONLY_A: "only A", ONLY_B: "only B"}
"""Words for items that exist in one tree only; the key is the bit that says so."""
_BITS_BY_CLASS = {"common": REPORTS_EQUAL, "only-a": ONLY_A, "only-b": ONLY_B, "differ": _ALL_PROPERTIES}
"""The classes of items that ``--output`` accepts, and the bits of a difference that select them."""


def bits_of_item_class(name: str) -> int:
    """Return the bits of a difference that select the items of a class of ``--output``, such as ``only-a`` or
    ``differ-in-size``.

    An item belongs to the class if its difference has one of these bits (``pcopy.tasks.compare.properties``).
    """
    return _BITS_BY_CLASS.get(name) or 1 << PROPERTIES.index(name.removeprefix("differ-in-"))


def property_names_in_bits(bits: int) -> list[str]:
    """Return the names, such as ``size``, of the properties whose bits are set in ``bits``."""
    return [name for at, name in enumerate(PROPERTIES) if bits >> at & 1]


class CompareDirector(JobDirector):
    """Director of ``pverify --compare`` (the object on rank 0 that chooses phases and the exit status).

    There is one phase. Its first task compares the two paths; further tasks compare the directories below them.
    Differences are also printed if some items could not be compared.
    """

    def first_tasks_of_phase(self, phase: int) -> list[NewTask]:
        first, second = (
            ItemIdentity(code, root.source_id[1])
            for root, (code, _) in zip(self._job.roots, mount_codes(self._job.roots), strict=True)
        )
        task = CompareNamedItems(Place(0, b"", first, second, False, False), ROOT_PATH)
        return [NewTask(int(Phase.COPY), encode_task(task), SCAN_COST, True)]

    def next_phase(self, phase: int, totals: tuple[int, ...]) -> int | None:
        return None

    def _determine_exit_status(self, sums: JobCounters, halted: HaltMessage | None) -> int:
        status = super()._determine_exit_status(sums, halted)
        if halted is None and status != EXIT_INTERNAL and sums.failed:
            self._complete(self._rank, sums)
        return status


class CompareJob(VerifyJobBase):
    """The job of ``pverify --compare`` on rank 0: checks the arguments, prints the differences and writes the lists."""

    failed_text = "compared: they may differ"

    def __init__(self, arguments: VerifyArguments) -> None:
        """Check the arguments and prepare the job. Raise ``RequestRefused`` if the trees cannot be compared; nothing is
        written.
        """
        super().__init__(arguments)
        comparison = arguments.comparison
        assert comparison is not None
        self._unlisted_directories = 0
        self._counts_by_bits: dict[int, int] = {}
        self._nul_separated = comparison.nul_separated
        self._properties = comparison.properties
        self._lists: dict[bytes, int] = {}
        for name, path in comparison.lists:
            self._lists[path] = self._lists.get(path, 0) | bits_of_item_class(name)
        roots = tuple(root_for_reading(path, follow=True) for path in arguments.paths)
        reports_equal = any(bits & REPORTS_EQUAL for bits in self._lists.values())
        given = arguments.options
        options = given._replace(
            preserve=acls_and_xattrs_to_compare(self._properties),
            hash=(given.hash or DEFAULT_ALGORITHM) if self._properties & CONTENT else "",
            block_size=given.block_size or Options().block_size,
            umask=umask_of_user(),
        )
        check_output_and_signature_files(roots, options, self.output, copies=False)
        check_comparison_lists([*self._lists], roots, self.output, force=arguments.force)
        if self._lists and any(root.item for root in roots):
            item = next(root for root in roots if root.item)
            raise path_refused(
                item.source_shown,
                "is not a directory, and --output lists the contents of directories: leave out --output",
            )
        program = CompareOptions(comparison.window, self._properties | (REPORTS_EQUAL if reports_equal else 0))
        self.job = Job(os.urandom(5).hex(), 1, roots, options, program, copies=False)

    def complete_job(self, rank: Rank, totals: JobCounters) -> int:
        if self._note_if_everything_excluded(totals):
            return EXIT_REFUSED
        differences = rank.shared_instance(CollectedDifferences)
        self._counts_by_bits = {bits: number for bits, number in differences.numbers.items() if bits}
        for difference in differences.sorted() if self._counts_by_bits else ():
            if difference.bits:
                self._print_difference(difference)
        troubles = [
            *filter(None, (self._write_difference_list(path, bits, differences) for path, bits in self._lists.items()))
        ]
        self._remarks += troubles
        if troubles:
            return EXIT_REFUSED
        return EXIT_DIFFERENT if self._counts_by_bits else EXIT_OK

    def _print_difference(self, difference: ItemDifference) -> None:
        """Print a difference on standard output, as a line or, with ``--json``, as a JSON object."""
        path, bits = difference.path, difference.bits
        if self.output.json:
            values: dict[str, object] = {"difference": _WORDS_FOR_ONE_SIDED_ITEMS.get(bits, "differ")}
            values |= {"in": property_names_in_bits(bits)} if bits & _ALL_PROPERTIES else {}
            exact = base64.b64encode(path).decode("ascii")
            print(json.dumps({**values, "path": printable_path(path), "path_b64": exact}))
        else:
            print(
                f"{_WORDS_FOR_ONE_SIDED_ITEMS.get(bits) or 'differ in ' + ','.join(property_names_in_bits(bits))}: "
                f"{printable_path(path)}"
            )

    def _write_difference_list(self, file: bytes, selected: int, differences: CollectedDifferences) -> str:
        """Write a list of ``--output``: the paths of all items that belong to the wanted classes. Return "", or the
        reason why the list could not be written.

        Directories that both trees have are not listed, even if they differ: a program that gets the list would process
        everything in them.

        Args:
            file: path of the list.
            selected: bits of the wanted classes (``bits_of_item_class``).
            differences: all differences.
        """
        end, left_out = b"\0" if self._nul_separated else b"\n", 0
        try:
            with replacing_output_file(file, self.job.options.umask, self.job.temporary_name_id) as stream:
                for path, bits, is_entered in differences.sorted():
                    if not selected & (bits or REPORTS_EQUAL):
                        continue
                    if is_entered:
                        left_out += bool(bits)
                        continue
                    if end in path:
                        raise RequestRefused(
                            f"{printable_path(path)} has a newline in it: give -0, and also give -0 to the "
                            "pcopy or prm that reads the list",
                            path=path,
                        )
                    stream.write(path + end)
        except RequestRefused as refused:
            return f"{printable_path(file)}: the list could not be written: {refused}"
        except OSError as error:
            return f"{printable_path(file)}: the list could not be written: {error.strerror}"
        self._unlisted_directories = max(self._unlisted_directories, left_out)
        return ""

    def _summary_lines(self, ended: JobResult, elapsed: float) -> Iterator[str]:
        numbers = self._difference_counts()
        if ended.status == EXIT_OK:
            yield "the same"
        elif self._counts_by_bits:
            alone = [f"{numbers[key]:,} {word}" for key, word in (("only_a", "only A"), ("only_b", "only B"))]
            each = ", ".join(
                f"{number:,} in {name}" for name, number in self._difference_counts_by_property().items() if number
            )
            parts = [*alone, f"{numbers['differ']:,} differ{each and f' ({each})'}"]
            yield f"different: {', '.join(part for part in parts if not part.startswith('0 '))}"
        if self._unlisted_directories:
            directories = count_with_noun(
                self._unlisted_directories, "directory that differs is", "directories that differ are"
            )
            yield f"{directories} in no list: pcopy --from would copy all that a listed directory holds"
        if ended.halt is None:
            items = count_with_noun(ended.totals.copied, "item", "items")
            read = f", {format_size(ended.totals.bytes)} read" if self._properties & CONTENT else ""
            properties = ",".join(property_names_in_bits(self._properties))
            yield f"{items} compared by {properties}{read} in {format_seconds(elapsed)}"

    def _difference_counts(self) -> dict[str, int]:
        """Return the numbers of items that exist in tree A only, in tree B only, or in both with differences.

        The keys are those of ``--json``.
        """
        alone = {"only_a": self._counts_by_bits.get(ONLY_A, 0), "only_b": self._counts_by_bits.get(ONLY_B, 0)}
        return {
            **alone,
            "differ": sum(number for bits, number in self._counts_by_bits.items() if bits & _ALL_PROPERTIES),
        }

    def _difference_counts_by_property(self) -> dict[str, int]:
        """Return the number of items that differ in each compared property, by the name of the property."""
        return {
            name: sum(
                number for bits, number in self._counts_by_bits.items() if bits & _ALL_PROPERTIES and bits >> at & 1
            )
            for at, name in enumerate(PROPERTIES)
            if self._properties >> at & 1
        }

    def _json_summary(self, ended: JobResult, elapsed: float, ranks: int) -> dict[str, object]:
        sums = self._difference_counts()
        return {
            "same": {EXIT_OK: True, EXIT_DIFFERENT: False}.get(ended.status),
            "compared": property_names_in_bits(self._properties),
            "common": ended.totals.copied - sum(sums.values()),
            **sums,
            "differ_in": self._difference_counts_by_property(),
            **common_json_values(ended.totals, _SHOWN_COUNTERS, elapsed, ranks, ended.status),
            "bytes_per_second": round(ended.totals.bytes / elapsed) if elapsed > 0 else 0,
        }
