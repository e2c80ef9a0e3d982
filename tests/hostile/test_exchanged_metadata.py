"""Another item takes a name between the look at it and the change of its metadata."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.command import pcopy, show
from tests.support.preload import preloaded
from tests.support.users import NOBODY, require_root

SOURCE = Path(__file__).with_name("exchange.c")


@pytest.mark.parametrize("kernel", ["c", "python"])
@pytest.mark.parametrize("words", [("4755",), ("--owner", "1"), ("u+s",)])
def test_exchanged_file_of_root_is_not_changed(words: tuple[str, ...], kernel: str, tmp_path: Path) -> None:
    require_root("own files")
    (tmp_path / "tree/inner").mkdir(parents=True)
    for name in ("tree/inner/mine", "roots"):
        (tmp_path / name).write_bytes(b"program")
        (tmp_path / name).chmod(0o755)
    os.chown(tmp_path / "tree/inner/mine", NOBODY, NOBODY)
    before = (tmp_path / "roots").stat()
    environment = preloaded(SOURCE) | {"EXCHANGE_WITH": str(tmp_path / "roots"), "PCOPY_KERNEL": kernel}
    run = pcopy("-n", "1", *words, tmp_path / "tree", program="pchmod", env=environment)
    found = [path for path in (tmp_path / "roots", tmp_path / "tree/inner/mine") if path.stat().st_ino == before.st_ino]
    after = found[0].stat()
    is_exchanged = found[0].name == "mine"
    assert is_exchanged == (kernel == "c"), show(run)
    if is_exchanged:
        assert (after.st_mode, after.st_uid) == (before.st_mode, before.st_uid), show(run)
        assert run.returncode == 1, show(run)
