"""Names spooled to a file are returned in order. A reduced limit makes the spool start early."""

from __future__ import annotations

import io
from typing import BinaryIO

import pytest

from pcopy.walk import listing
from pcopy.walk.listing import NameBatchQueue


@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 50])
def test_spooled_names_keep_their_order_in_bounded_memory(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(listing, "MAX_BATCH_BYTES_IN_MEMORY", 15)
    opened: list[BinaryIO] = []

    def open_spool() -> BinaryIO:
        opened.append(io.BytesIO())
        return opened[-1]

    spool = NameBatchQueue(open_spool)
    batches = [b"x" * (index * 37 % 11) + b"%d" % index for index in range(number)]
    for batch in batches:
        spool.append(batch)
    assert len(opened) == (number > 3)
    assert len(spool._in_memory) == min(number, 3)
    assert list(spool) == batches
    assert all(file.closed for file in opened)
