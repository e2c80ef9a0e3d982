"""All items that a copy creates request their layout before anything is written to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pcopy.fsio.attributes import ItemHandle
from pcopy.fsio.backend.interface import MAX_SMALL_FILE_BYTES
from pcopy.fsio.layout import LayoutPolicy, LayoutRecipe, TargetDirectory
from tests.tasks.one_rank import consistent, copy, root_of

SIZE = MAX_SMALL_FILE_BYTES + 1


class ByName(LayoutPolicy):
    """A policy that uses an attribute of the source as the layout."""

    uses_only_default = False

    def layout_recipe_for_file(self, source: int, status: os.stat_result, target: TargetDirectory) -> LayoutRecipe:
        assert status.st_size == SIZE
        return LayoutRecipe(attribute=("user.layout", os.getxattr(source, "user.wanted")))

    def layout_recipes_for_small_files(
        self,
        source: int,
        names: Sequence[bytes],
        sizes: Sequence[int],
        target: TargetDirectory,
        *,
        follow: bool = False,
    ) -> list[tuple[LayoutRecipe, list[int]]]:
        assert (*names, *sizes) == (b"other", b"small", 3, 7)
        wanted = os.getxattr(source, "user.wanted")
        return [
            (LayoutRecipe(attribute=("user.layout", b"%b in %b" % (name, wanted))), [row])
            for row, name in enumerate(names)
        ]

    def set_default_layout_of_directory(self, source: ItemHandle, target: int) -> str:
        os.setxattr(target, "user.layout", os.getxattr(source, "user.wanted"))
        return ""


@pytest.mark.parametrize("chunks", [1, 5])
def test_files_and_directories_get_their_layouts(area: Path, monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Files are copied in one piece or split."""
    source, target = area / "source", area / "target"
    (source / "directory").mkdir(parents=True)
    target.mkdir()
    (source / "directory" / "file").write_bytes(bytes(SIZE))
    (source / "directory" / "small").write_bytes(b"content")
    (source / "directory" / "other").write_bytes(b"one")
    for path in (source, source / "directory", source / "directory" / "file"):
        os.setxattr(path, "user.wanted", path.name.encode())
    monkeypatch.setattr("pcopy.tasks.files.layouts.LayoutPolicy", ByName)
    chunk = -(-SIZE // chunks)
    copied = copy(root_of(source, target), ranks=2, chunk_size=chunk, block_size=1 << 20)
    consistent(copied)
    assert ("CopyChunk" in copied.kinds) == (chunks > 1)
    for name in ("small", "other"):
        assert os.getxattr(target / "directory" / name, "user.layout") == f"{name} in directory".encode()
    assert os.listxattr(target) == ["user.wanted"]  # it existed before
    for name in ("directory", "directory/file"):
        assert os.getxattr(target / name, "user.layout") == os.path.basename(name).encode()
