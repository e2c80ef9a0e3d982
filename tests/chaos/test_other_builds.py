"""Resume a job with another build of pcopy, which has other kinds of tasks."""

from __future__ import annotations

import pkgutil
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from pcopy import tasks
from pcopy.tasks.base.kind import KIND_BY_CODE, TASK_FORMAT
from tests.chaos.unfinished import REFUSED, Stop, check_equal, listed
from tests.support.command import BEING_WRITTEN, REPOSITORY, pcopy, show, succeed
from tests.support.edits import Edit, edit_file

for module in pkgutil.walk_packages(tasks.__path__, "pcopy.tasks."):
    import_module(module.name)  # registers its task kinds

ANOTHER_KIND = '''

class ReadEntrails(DirectoryTask, code=199, doing="reading the entrails of", is_note=False):
    """A kind that no build has yet."""

    def run(self, rank: Rank, result: TaskResult) -> None:
        """Nobody spawns it."""
'''


OF_FORMAT = 9
KNOWN: dict[int, tuple[str, str]] = {
    1: ("ScanDir", "root path source_id parent since"),
    2: ("ScanNames", "place names attempt"),
    3: ("FinishDir", "place attributes counts_as_copied source_entries is_again earlier_mtime action checks_below"),
    4: ("FinishDirLastNote", "finish"),
    5: ("FinishDirsLast", ""),
    6: ("DirectoryFailedNote", "place problem retry"),
    7: ("SyncFileSystems", "place"),
    8: ("ScanDirs", "place names inodes"),
    9: ("FinishDirs", "place names sources targets marks states attributes"),
    10: ("CopyFiles", "place names rows attempt"),
    11: ("CopySpecialFiles", "place names inodes attempt"),
    12: ("SplitFile", "item"),
    13: ("LargeFileOpenedNote", "file chunks chunk"),
    14: ("CopyChunk", "file start end part stride run_bytes in_turn"),
    15: ("ChunkCopiedNote", "temporary problem part step runs roots writer"),
    16: ("FinishFile", "file digest chunk writers"),
    17: ("RemoveIncompleteMarks", "place names inodes lacks_metadata"),
    18: ("RenameCopies", "place names temporaries inodes marks kinds sizes versions digests attempt writer durations"),
    19: ("RenameLinkedCopy", "item unnamed_copy known chunk writers metadata_problem duration"),
    20: ("DistributeChunks", "file chunks"),
    21: ("ReportLayoutCounts", ""),
    22: ("UsedLayoutsNote", "used"),
    23: ("CopyListedPaths", "root start end entered last_path copied_whole without_contents counted_down_to"),
    30: ("HardLinkNamesNote", "place names mounts inodes sizes attempt bucket"),
    31: ("GatherHardLinks", "bucket"),
    32: ("CopyHardLinkGroup", "item"),
    33: ("CreateHardLinks", "item copy is_first_name_finished counted_name"),
    34: ("InodeCopiedNote", "item copy"),
    35: ("ReplaceIncompleteCopy", "item inode mark size_and_mtime has_metadata"),
    36: ("InodesCopiedNote", "notes bucket"),
    37: ("CopyHardLinkGroups", "directories names directory_indices names_per_item mounts inodes sizes"),
    40: ("ReadItems", "place names kinds inodes attempt counter"),
    41: ("VerifyItems", "place names kinds counters sizes versions digests writer"),
    42: ("VerifyLinks", "contents inode"),
    43: ("SplitFileForReading", "contents"),
    44: ("ChunkedReadStartedNote", "contents number chunks"),
    45: ("ReadChunk", "contents start end number part"),
    46: ("ChunkReadNote", "number part root problem"),
    50: ("StoreSignatureEntries", "entries"),
    51: ("SendSignatureEntries", ""),
    52: ("SignatureEntriesNote", "parts"),
    53: ("DeepestLevelNote", "depth"),
    54: ("DigestDirectoriesOfDepth", "depth"),
    55: ("DigestedDirectoriesNote", "parts"),
    56: ("SignatureNote", "side digest tally"),
    57: ("DifferencesNote", "rows"),
    58: ("SendManifestLines", ""),
    59: ("ManifestLinesNote", "rank rows is_last"),
    60: ("WriteManifest", ""),
    61: ("ReadManifest", ""),
    70: ("ReportFailures", "failures notices retries unsupported_notices one_time_notices"),
    71: ("ReportItems", "sender batches"),
    72: ("AcknowledgeReportedItems", "number"),
    80: ("RemoveNamedItems", "place waiter names kinds inodes"),
    81: ("RemoveDir", "place waiter parent is_empty keeps_directory"),
    83: ("RemovalEndedNote", "number has_remaining of_run"),
    84: ("DeleteExtraItems", "place counted_before"),
    85: ("DeleteExtraNames", "place names kinds inodes"),
    86: ("RemoveDirs", "place waiter names kinds inodes"),
    90: ("ExamineLayouts", "place names inodes"),
    91: ("ChangeLayout", "place name inode"),
    92: ("ExamineDirectories", "place names inodes are_simple"),
    130: ("DescribedMembersNote", "records is_linked"),
    131: ("ArchiveFrameNote", "number compressed size offset maker"),
    132: ("GroupLinkNames", ""),
    133: ("DescribeRoot", "root"),
    134: ("ReportPieces", ""),
    135: ("ArchivePiecesNote", "sender keys sizes digests"),
    136: ("LayOutPieces", ""),
    137: ("PieceOffsetsNote", "offsets is_last"),
    138: ("WriteMembers", "pieces number"),
    139: ("WriteChunk", "value at start end part coordinator number piece"),
    140: ("ChunkWrittenNote", "at part problem root"),
    141: ("SyncArchive", ""),
    142: ("FindSpansToRead", ""),
    143: ("ReadArchiveSpan", "start end"),
    144: ("FoundMembersNote", "records"),
    145: ("SpawnExtractTasks", ""),
    146: ("ExtractMembers", "values superseded path names simple_members is_leaf"),
    147: ("CreateExtractedHardLinks", "values"),
    149: ("ExtractedDirectoryToFinishLastNote", "value"),
    154: ("CompareMemberNames", ""),
    155: ("NameConflictNote", "path stretches"),
    156: ("LinksToResolveNote", "links"),
    157: ("ResolveLinks", ""),
    158: ("ArchiveDirectories", "place names inodes is_apart"),
    159: ("ScanSortedNames", "place names attempt"),
    180: ("ExtractFilePart", "path name temporary identity size data start end coordinator shown"),
    181: ("PartExtractedNote", "temporary problem"),
    182: ("FindSpansToDigest", ""),
    183: ("DigestArchiveSpan", "start end"),
    184: ("DigestMemberPart", "at part data size extents coordinator"),
    185: ("PartDigestedNote", "at part problem root"),
    186: ("DigestedMembersNote", "records"),
    187: ("NamesFoundNote", "numbers"),
    189: ("IncompleteFileNote", "name"),
    190: ("ExtractDirectories", "tasks"),
    191: ("FinishExtractedDirectories", "values"),
    100: ("WalkCommandLinePath", "number"),
    101: ("WalkDirectories", "place names inodes are_simple"),
    102: ("WalkNamesOfLargeDirectory", "place names kinds inodes"),
    103: ("FoundItemsNote", "sender parts packed"),
    104: ("FoundItemsAcknowledgedNote", "number"),
    105: ("WalkSumsRequestNote", ""),
    106: ("WalkSumsNote", "packed_sums packed_layouts"),
    107: ("StatListedPaths", "directory paths"),
    108: ("ReadPathList", "file ends_with_nul directory base"),
    150: ("PrepareBenchmarkStep", "step file_owner created private_inode"),
    151: ("RankReadyNote", ""),
    152: ("MeasureBenchmarkStep", "step"),
    153: ("MeasurementNote", "rank begin end amount"),
    160: ("OpenHostDirectory", "directory"),
    161: ("FindHostsSharingDirectory", ""),
    162: ("SendFiles", "paths"),
    163: ("StreamPiece", "parts"),
    164: ("PiecesForwardedNote", "child number"),
    165: ("CheckHostDirectory", "directory names needed_bytes"),
    166: ("StopDeletion", "of_run"),
    167: ("SyncHostDirectory", ""),
    168: ("SharedDirectoryNote", "first other"),
    169: ("ExamineMounts", "place counted_before host_index"),
    110: ("DistributeListedPaths", "record_size start"),
    111: ("VisitListedItems", "paths records"),
    112: ("DeferredDirectoriesNote", "place names rows"),
    113: ("SpawnDeepestDirectoryTasks", ""),
    114: ("VisitDeferredDirectories", "place names rows"),
    115: ("ChangeMetadataOfItems", "place names kinds inodes"),
    116: ("ChangeMetadataInDirectories", "place names inodes is_changed are_simple"),
    120: ("CompareDirs", "place names inodes others is_compared are_simple"),
    121: ("CompareNamedItems", "place names skips_first_side"),
    122: ("CompareSmallFiles", "place names bits inodes others"),
    123: ("CompareLargeFile", "place name bits size inode other_inode"),
    124: ("ComparisonStartedNote", "place name bits size number parts"),
    125: ("CompareFilePart", "place name version other_version start end number"),
    126: ("PartComparedNote", "number differs side problem"),
    127: ("ItemDifferencesNote", "sender batches"),
    128: ("ComparePairs", "place names are_directories"),
    170: ("RecodeFiles", "place names inodes sizes attempt"),
    171: ("RecodeFile", "item"),
    172: ("RecodingStartedNote", "file temporary_size bounds table span"),
    173: ("RecodePart", "file temporary_size number start end table span"),
    174: ("PartRecodedNote", "temporary number problem frames root holder"),
    175: ("WriteRecodedPart", "file temporary_size number offset"),
    176: ("FinishRecodedFile", "file temporary_size frames digest"),
}
"""Name and fields of each task kind, by code. A change needs another ``TASK_FORMAT``; codes are never reused."""

MORE = Edit("tasks/files/remove_marks.py", "", "", ANOTHER_KIND)
FEWER = Edit("tasks/files/copy_files.py", "CopyFiles", "10", "198")
SHAPE = Edit("tasks/files/copy_files.py", "CopyFiles", "attempt: int", "attempt: int\nmore: int = 0")
NEXT = Edit("tasks/base/kind.py", "", f"TASK_FORMAT = {TASK_FORMAT}", f"TASK_FORMAT = {TASK_FORMAT + 1}")

Build = Callable[..., dict[str, str]]


@pytest.fixture
def build(area: Path, env: dict[str, str]) -> Build:
    """Return the environment of a pcopy with the given edits."""

    def made(*edits: Edit) -> dict[str, str]:
        place = area / "build"
        shutil.copytree(REPOSITORY / "pcopy", place / "pcopy", ignore=BEING_WRITTEN)
        for edit in edits:
            edit_file(place / "pcopy", edit)
        return {**env, "PYTHONPATH": str(place)}

    return made


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("edit", [MORE, FEWER, SHAPE], ids=["one kind more", "one fewer", "another shape"])
def test_build_with_other_task_kinds_refuses_the_job_without_changing_it(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, build: Build, edit: Edit
) -> None:
    name = stop(tree, area / "copy")
    other = build(edit, NEXT)
    for words in (("--resume", name), ("--resume",)):
        run = pcopy(*words, env=other)
        assert run.returncode == REFUSED, show(run)
        for reported in (f"version {TASK_FORMAT};", f"version {TASK_FORMAT + 1};", "--discard"):
            assert reported.encode() in run.stderr, show(run)
        assert len(run.stderr.splitlines()) == 3 - len(words), show(run)
    assert [job["job"] for job in listed(env)] == [name]
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("edit", [FEWER, SHAPE], ids=["one kind fewer", "another shape"])
def test_build_with_other_task_kinds_and_the_same_version_refuses_the_job(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, build: Build, edit: Edit
) -> None:
    name = stop(tree, area / "copy")
    run = pcopy("--resume", name, env=build(edit))
    assert run.returncode == REFUSED, show(run)
    assert f"version {TASK_FORMAT}".encode() in run.stderr, show(run)
    assert len(run.stderr.splitlines()) == 1, show(run)
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


def test_task_codes_and_fields_match_the_recorded_table() -> None:
    assert {code: (kind.__name__, " ".join(kind.fields)) for code, kind in KIND_BY_CODE.items()} == KNOWN
    assert TASK_FORMAT == OF_FORMAT
