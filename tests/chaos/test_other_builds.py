"""A job that one build of pcopy has stopped, and another one, with other kinds of tasks, is to go on with."""

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
    import_module(module.name)  # which makes its kinds known

ANOTHER_KIND = '''

class ReadEntrails(OfPlace, code=199, doing="reading the entrails of", is_note=False):
    """A kind that no build has yet."""

    def run(self, rank: Rank, result: Result) -> None:
        """Nobody spawns it."""
'''


OF_FORMAT = 9
KNOWN: dict[int, tuple[str, str]] = {
    1: ("ScanDir", "root path source_id parent since"),
    2: ("ScanNames", "place names attempt"),
    3: ("FinishDir", "place attributes counted entries again was action"),
    4: ("SealDir", "finish"),
    5: ("SealDirs", ""),
    6: ("FailDir", "place problem retry"),
    7: ("SyncFiles", "place"),
    8: ("ScanDirs", "place names inodes"),
    9: ("FinishDirs", "place names sources targets marks states attributes"),
    10: ("CopyFiles", "place names rows attempt"),
    11: ("CopyNodes", "place names inodes attempt"),
    12: ("SplitFile", "item"),
    13: ("FileOpened", "file chunks chunk"),
    14: ("CopyChunk", "file start end part stride run_bytes in_turn"),
    15: ("ChunkDone", "temporary problem part step runs roots writer"),
    16: ("FinishFile", "file digest chunk writers"),
    17: ("Unmark", "place names inodes failed"),
    18: ("NameItems", "place names temporaries inodes marks kinds sizes versions digests attempt writer took"),
    19: ("NameGroup", "item made known chunk writers shortcoming took"),
    20: ("HandChunks", "file chunks"),
    21: ("TellLayouts", ""),
    22: ("LayoutsUsed", "used"),
    23: ("CopyListed", "root start end above last whole left_out counted"),
    30: ("LinkNote", "place names mounts inodes sizes attempt bucket"),
    31: ("GroupLinks", "bucket"),
    32: ("LinkGroup", "item"),
    33: ("MakeLinks", "item copy more copied"),
    34: ("InodeCopied", "item copy"),
    35: ("CopyAnew", "item inode mark known is_whole"),
    36: ("InodesCopied", "notes bucket"),
    37: ("LinkGroups", "places_of names lying lengths mounts inodes sizes"),
    40: ("ReadItems", "place names kinds inodes attempt counter"),
    41: ("VerifyItems", "place names kinds counters sizes versions digests writer"),
    42: ("VerifyLinks", "contents made"),
    43: ("SplitRead", "contents"),
    44: ("ReadOpened", "contents number chunks"),
    45: ("ReadChunk", "contents start end number part"),
    46: ("ChunkRead", "number part root problem"),
    50: ("StoredEntries", "entries"),
    51: ("SendEntries", ""),
    52: ("EntriesNote", "parts"),
    53: ("DeepestNote", "depth"),
    54: ("DigestLevel", "depth"),
    55: ("DirectoriesNote", "parts"),
    56: ("SignatureNote", "side digest tally"),
    57: ("DifferencesNote", "rows"),
    58: ("SendLines", ""),
    59: ("LinesNote", "rank rows last"),
    60: ("WriteManifest", ""),
    61: ("ReadManifest", ""),
    70: ("ReportFailures", "failures notices retries unknown once"),
    71: ("TellItems", "teller batches"),
    72: ("ItemsHeard", "number"),
    80: ("RemoveNames", "place awaited names kinds inodes"),
    81: ("RemoveDir", "place awaited parent is_empty stays"),
    83: ("PartRemoved", "number left of_run"),
    84: ("DeleteExtra", "place counted"),
    85: ("DeleteAmong", "place names kinds inodes"),
    86: ("RemoveDirs", "place awaited names inodes"),
    90: ("LookAtLayouts", "place names inodes"),
    91: ("ChangeLayout", "place name inode"),
    130: ("MembersNote", "records linked"),
    131: ("FrameNote", "number compressed size offset teller"),
    132: ("GroupLinkNames", ""),
    133: ("DescribeRoot", "root"),
    134: ("TellPieces", ""),
    135: ("PiecesNote", "teller keys sizes digests"),
    136: ("PlacePieces", ""),
    137: ("OffsetsNote", "offsets last"),
    138: ("WriteMembers", "pieces number"),
    139: ("WriteChunk", "value at start end part teller number piece"),
    140: ("ChunkWritten", "at part problem root"),
    141: ("SyncArchive", ""),
    142: ("ReadHeaders", ""),
    143: ("ReadSpan", "start end"),
    144: ("FoundNote", "records"),
    145: ("Unpack", ""),
    146: ("ExtractMembers", "values superseded path names plain"),
    147: ("LinkMembers", "values"),
    148: ("FinishMember", "value"),
    149: ("SealMembers", "value"),
    154: ("CompareRivals", ""),
    155: ("RivalNote", "path stretches"),
    156: ("LinkRivalNote", "links"),
    157: ("FollowLinks", ""),
    180: ("UnpackPart", "path name temporary made size data start end teller shown"),
    181: ("PartUnpacked", "temporary problem"),
    182: ("FindMembers", ""),
    183: ("DigestSpan", "start end"),
    184: ("DigestPart", "at part data size extents teller"),
    185: ("PartDigested", "at part problem root"),
    186: ("DigestedNote", "records"),
    187: ("NamesFound", "numbers"),
    189: ("IncompleteFile", "name"),
    100: ("WalkRoot", "number"),
    101: ("WalkDirs", "place names inodes"),
    102: ("WalkNames", "place names kinds inodes"),
    103: ("TellFound", "teller parts packed"),
    104: ("FoundHeard", "number"),
    105: ("TellSums", ""),
    106: ("SumsHeard", "words layouts"),
    107: ("WalkPaths", "directory paths"),
    108: ("WalkListed", "file nul directory base"),
    150: ("Prepare", "step whose made private"),
    151: ("RankReady", ""),
    152: ("Measure", "step"),
    153: ("Told", "number begin end done"),
    160: ("OpenTarget", "directory"),
    161: ("LookAround", ""),
    162: ("Send", "paths"),
    163: ("Piece", "parts"),
    164: ("Passed", "child number"),
    165: ("CheckDirectory", "directory names needed"),
    166: ("StopDeletion", "of_run"),
    167: ("SyncTarget", ""),
    168: ("SeesSame", "first other"),
    169: ("ExamineMounts", "place counted number"),
    110: ("HandOut", "told start"),
    111: ("VisitListed", "paths told"),
    112: ("TellLater", "place names rows"),
    113: ("HandOutLevel", ""),
    114: ("VisitLater", "place names rows"),
    115: ("ChangeNames", "place names kinds inodes"),
    116: ("ChangeTree", "place names inodes"),
    120: ("CompareDirs", "place names inodes others"),
    121: ("CompareNames", "place names once_more"),
    122: ("CompareFiles", "place names bits inodes others"),
    123: ("CompareFile", "place name bits size inode other"),
    124: ("ComparisonOpened", "place name bits size number parts"),
    125: ("ComparePart", "place name version other start end number"),
    126: ("PartCompared", "number differs side problem"),
    127: ("TellDifferences", "teller found"),
    170: ("RecodeFiles", "place names inodes sizes attempt"),
    171: ("RecodeFile", "item"),
    172: ("RecodeOpened", "file room bounds table span"),
    173: ("RecodePart", "file room number start end table span"),
    174: ("PartDone", "temporary number problem frames root holder"),
    175: ("WritePart", "file room number offset"),
    176: ("FinishRecoded", "file room frames digest"),
}
"""The fields of each kind, by its code. Whoever changes this table raises ``FORMAT``; a code is never given again."""

MORE = Edit("tasks/files/unmark.py", "", "", ANOTHER_KIND)
FEWER = Edit("tasks/files/copy_files.py", "CopyFiles", "10", "198")
SHAPE = Edit("tasks/files/copy_files.py", "CopyFiles", "attempt: int", "attempt: int\nmore: int = 0")
NEXT = Edit("tasks/base/kind.py", "", f"FORMAT = {TASK_FORMAT}", f"FORMAT = {TASK_FORMAT + 1}")

Build = Callable[..., dict[str, str]]


@pytest.fixture
def build(area: Path, env: dict[str, str]) -> Build:
    """The environment in which pcopy is one with some edits."""

    def made(*edits: Edit) -> dict[str, str]:
        place = area / "build"
        shutil.copytree(REPOSITORY / "pcopy", place / "pcopy", ignore=BEING_WRITTEN)
        for edit in edits:
            edit_file(place / "pcopy", edit)
        return {**env, "PYTHONPATH": str(place)}

    return made


@pytest.mark.in_turn(2)
@pytest.mark.parametrize("edit", [MORE, FEWER, SHAPE], ids=["one kind more", "one fewer", "another shape"])
def test_a_build_with_other_kinds_refuses_the_job_and_leaves_it_alone(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, build: Build, edit: Edit
) -> None:
    name = stop(tree, area / "copy")
    other = build(edit, NEXT)
    for words in (("--resume", name), ("--resume",)):
        run = pcopy(*words, env=other)
        assert run.returncode == REFUSED, show(run)
        for told in (f"version {TASK_FORMAT};", f"version {TASK_FORMAT + 1};", "--discard"):
            assert told.encode() in run.stderr, show(run)
        assert len(run.stderr.splitlines()) == 3 - len(words), show(run)
    assert [job["job"] for job in listed(env)] == [name]
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


@pytest.mark.in_turn(1)
@pytest.mark.parametrize("edit", [FEWER, SHAPE], ids=["one kind fewer", "another shape"])
def test_a_build_whose_version_was_forgotten_takes_no_task_for_another(
    tree: Path, area: Path, env: dict[str, str], stop: Stop, build: Build, edit: Edit
) -> None:
    name = stop(tree, area / "copy")
    run = pcopy("--resume", name, env=build(edit))
    assert run.returncode == REFUSED, show(run)
    assert f"version {TASK_FORMAT}".encode() in run.stderr, show(run)
    assert len(run.stderr.splitlines()) == 1, show(run)
    succeed("--resume", name, env=env)
    check_equal(tree, area / "copy")


def test_codes_are_never_given_again() -> None:
    assert {code: (kind.__name__, " ".join(kind.fields)) for code, kind in KIND_BY_CODE.items()} == KNOWN
    assert TASK_FORMAT == OF_FORMAT
