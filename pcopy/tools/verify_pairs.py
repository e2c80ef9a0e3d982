"""``pverify A B`` with two directories: both trees are compared side by side, and only items that were not found equal
are read for their digests. The output is that of a comparison in which every item has a digest.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from pcopy.engine.task import NewTask
from pcopy.fsio.identity import ItemIdentity
from pcopy.signature.items import ROOT_PATH
from pcopy.signature.manifest import tree_order_key
from pcopy.tasks.base.codec import encode_task
from pcopy.tasks.base.job import JobCounters
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import SCAN_COST, Rank
from pcopy.tasks.base.values import Place
from pcopy.tasks.compare.compare_pairs import ComparePairs
from pcopy.tasks.compare.report_differences import CollectedDifferences
from pcopy.tasks.sign import digest_level  # noqa: F401 (only loads the module, while descriptors are available)
from pcopy.tasks.sign.children import DatasetCounts, sum_of_counts
from pcopy.tasks.sign.signing import DatasetDifference, SignatureState
from pcopy.tools.arguments import VerifyArguments
from pcopy.tools.director import JobDirector


def can_compare_side_by_side(arguments: VerifyArguments) -> bool:
    """Return True if ``arguments`` request only the differences between two directories: no signature is shown, and no
    option applies to each item that is read.
    """
    options, output = arguments.options, arguments.output
    if arguments.create or arguments.manifest or not all(map(os.path.isdir, arguments.paths)):
        return False
    shows_signature = output.json or output.reports or options.hash or options.block_size
    return not (
        shows_signature
        or options.select.has_filters
        or options.direct
        or options.drop_cache
        or options.bwlimit
        or options.oplimit
    )


class PairDirector(JobDirector):
    """Director of a comparison side by side (the object on rank 0 that chooses phases and the exit status).

    Its first task compares the two roots. After the items were read, one phase compares all digests: no directory has a
    digest, so that there are no levels.
    """

    def first_tasks_of_phase(self, phase: int) -> list[NewTask]:
        if phase != Phase.COPY:
            return [*super().first_tasks_of_phase(phase)]
        first, second = (
            ItemIdentity(code, root.source_id[1])
            for root, (code, _) in zip(self._job.roots, self._mount_codes, strict=True)
        )
        task = ComparePairs(Place(0, b"", first, second, False, False), ROOT_PATH)
        return [NewTask(int(Phase.COPY), encode_task(task), SCAN_COST, True)]

    def _depth_of_deepest_directory(self) -> int:
        return 0


def differences_of_pairs(rank: Rank) -> Iterator[DatasetDifference]:
    """Yield all differences, in the order of the tree: those that the digests have shown, and the files whose contents
    the backend has found different. ``rank`` is rank 0, at the end of the job.
    """
    differences = rank.shared_instance(SignatureState).differences
    for path, *_ in rank.shared_instance(CollectedDifferences).sorted():
        differences.add(tree_order_key(path), b"changed")
    for key, word in differences.sorted():
        yield word.decode(), key.replace(b"\0", b"/")


def counts_of_sides(sign: SignatureState, totals: JobCounters) -> list[DatasetCounts]:
    """Return what each tree contains. ``sign`` has the counts of the items that have digests, ``totals`` count all
    items of both trees; half of the difference are the pairs without digests.
    """
    unequal = [sign.signatures[side][1] for side in (0, 1)]
    read = DatasetCounts(totals.files, totals.directories, totals.symlinks, totals.special, totals.bytes)
    pairs = DatasetCounts(*((both - sum(each)) // 2 for both, *each in zip(read, *unequal, strict=True)))
    return [sum_of_counts((pairs, each)) for each in unequal]
