"""What the parts of a file carry that is read in chunks."""

from __future__ import annotations

from pcopy.fsio.identity import Identity
from pcopy.fsio.preserve import Preserve
from pcopy.fsio.python_kernel import PythonKernel
from pcopy.fsio.source import Version
from pcopy.signature.items import FILE
from pcopy.tasks import counts
from pcopy.tasks.context import Context
from pcopy.tasks.job import Job, Options
from pcopy.tasks.phases import Phase
from pcopy.tasks.read_values import Contents, SplitRead
from pcopy.tasks.result import Result
from pcopy.tasks.split_read import split_read
from pcopy.tasks.values import Known, Place

CHUNKS = 1 << 14


def test_a_chunk_does_not_carry_what_is_as_long_as_the_file_has_chunks() -> None:
    """The hosts that have written a file are a byte for each chunk: 65,536 chunks took 4.3 GB of memory with them."""
    context = Context(Job("0" * 10, 1, (), Options(hash="xxh3-128")), 0, 2, (), PythonKernel(Preserve(), 0o022))
    known = Known(FILE, CHUNKS << 20, b"", Version(1, CHUNKS << 20, 0, 0))
    place = Place(0, b"", Identity(1, 1), Identity(1, 2), False, False)
    contents = Contents(place, b"hole", known, False, 0, counts.FILES, 1 << 20, bytes(CHUNKS))
    result = Result(context, Phase.VERIFY, (1, 0, 1))
    slices = split_read(SplitRead(contents), context, result)
    try:
        next(slices)
    except StopIteration as end:
        spawned = list(end.value.spawned)
    assert len(spawned) == 1 + CHUNKS
    assert max(len(each.payload) for each in spawned[1:]) < 1000
