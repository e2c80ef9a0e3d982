"""Runs of programs use the C backend; with ``PCOPY_TESTS=all`` each test runs again with the Python backend,
unless it has the marker ``c_backend``.
"""

from __future__ import annotations

import pytest

from tests.support import command, native
from tests.support.extent import everything

OF_RUNS = ("c", "python") if everything() else ("",)


@pytest.fixture(autouse=True, params=OF_RUNS, ids=[f"backend-{name}" for name in OF_RUNS])
def backend_of_runs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python" and request.node.get_closest_marker("c_backend"):
        pytest.skip("the test is about the C backend")
    if request.param == "c":
        native.require()
    if request.param:
        monkeypatch.setattr(command, "backend", request.param)
