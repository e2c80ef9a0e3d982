"""The tasks for the parts of a file that is read in chunks."""

from __future__ import annotations

from pcopy.fsio.backend.choose import create_backend
from pcopy.fsio.backend.interface import BackendSettings
from pcopy.fsio.identity import ItemIdentity
from pcopy.fsio.preserve import PreservedMetadataKinds
from pcopy.fsio.source import FileContentVersion
from pcopy.signature.items import FILE
from pcopy.tasks.base import counts
from pcopy.tasks.base.job import Job, Options
from pcopy.tasks.base.phases import Phase
from pcopy.tasks.base.rank import Rank
from pcopy.tasks.base.result import TaskResult
from pcopy.tasks.base.values import ContentInfo, FileToRead, Place
from pcopy.tasks.copying import make_visitor
from pcopy.tasks.runner import make_task_outcome
from pcopy.tasks.verify.split_read import SplitFileForReading

CHUNKS = 1 << 14


def test_size_of_a_chunk_task_does_not_depend_on_the_number_of_chunks() -> None:
    """The writers of a file take one byte per chunk: with 65,536 chunks their copies in each task took 4.3 GB of
    memory.
    """
    context = Rank(
        Job("0" * 10, 1, (), Options(hash="xxh3-128")),
        0,
        2,
        (),
        create_backend(BackendSettings(PreservedMetadataKinds(), 0o022)),
        make_visitor,
    )
    known = ContentInfo(FILE, CHUNKS << 20, b"", FileContentVersion(1, CHUNKS << 20, 0, 0))
    place = Place(0, b"", ItemIdentity(1, 1), ItemIdentity(1, 2), False, False)
    contents = FileToRead(place, b"hole", known, False, 0, counts.FILES, 1 << 20, bytes(CHUNKS))
    result = TaskResult(context, Phase.VERIFY, (1, 0, 1))
    SplitFileForReading(contents).run(context, result)
    spawned = list(make_task_outcome(result, context).spawned)
    assert len(spawned) == 1 + CHUNKS
    assert max(len(each.payload) for each in spawned[1:]) < 1000
