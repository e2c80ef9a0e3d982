"""Names that are given last: the handling of an item whose name another program has taken in the meantime."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from pcopy.tasks.files.name_items import RenameCopies
from tests.tasks.one_rank import copy, once, root_of


@pytest.mark.parametrize("item", [b"", b"name"])
@pytest.mark.parametrize("error", [0, errno.EPERM])
def test_unnamed_item_is_removed_or_reported(
    area: Path, monkeypatch: pytest.MonkeyPatch, error: int, item: bytes
) -> None:
    source, target = area / "source", area / "target"
    source.mkdir()
    target.mkdir()
    (source / "name").write_bytes(b"the source's")
    real = os.unlink

    def unlink(path: Any, **keywords: Any) -> None:
        if error:
            raise OSError(error, os.strerror(error))
        real(path, **keywords)

    def take() -> None:
        (target / "name").write_bytes(b"the user's")
        monkeypatch.setattr(os, "unlink", unlink)

    copied = copy(root_of(source, target, item), before=once(RenameCopies, take), existing="skip")
    monkeypatch.undo()
    left = sorted(set(os.listdir(target)) - {"name"})
    assert (copied.totals.skipped, copied.totals.failed, (target / "name").read_bytes()) == (1, 0, b"the user's")
    assert (len(left), copied.totals.warnings) == ((1, 1) if error else (0, 0))
    if error:
        (notice,) = copied.notices
        where = target / os.fsdecode(item)
        assert notice == f"{where}: a temporary file cannot be removed: {left[0]}: unlink: {os.strerror(error)}"
