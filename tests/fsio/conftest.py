"""Fixtures of file operations."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fsio.backend_bench import BACKENDS, BackendFactory


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Disable the garbage collector: tests count open descriptors, and it may close those that earlier tests left."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def directory(area: Path) -> Iterator[int]:
    """A descriptor of the directory ``area``."""
    descriptor = os.open(area, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["c", "c-threads"])
def make_backend(request: pytest.FixtureRequest) -> BackendFactory:
    """A function that creates a C backend, without threads or with four."""
    return BACKENDS[request.param]
