"""Results and exceptions can be sent to other processes, as Dask, Parsl and multiprocessing do."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import pcopy
from pcopy.api import results


def test_failures_survive_pickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_MOST_LINES_IN_MEMORY", 2)
    absent = [f"{tmp_path}/absent{number}" for number in range(5)]
    with pytest.raises(pcopy.ItemsFailed) as caught:
        pcopy.remove(absent)
    restored = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(restored, pcopy.ItemsFailed)
    assert sorted(item.path.decode() for item in restored) == absent
    assert (restored.status, str(restored)) == (1, str(caught.value))


def test_differences_survive_pickling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "_MOST_LINES_IN_MEMORY", 1)
    for tree, text in (("a", b"one"), ("b", b"two")):
        (tmp_path / tree).mkdir()
        for name in ("first", "second", "third"):
            (tmp_path / tree / name).write_bytes(text)
    restored = pickle.loads(pickle.dumps(pcopy.compare(tmp_path / "a", tmp_path / "b")))
    assert sorted(each.path for each in restored.differences) == [b"first", b"second", b"third"]
