"""Metrics as the parser of Prometheus reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families


class Read:
    """A metrics file: each series once, with ``kinds`` and ``helps`` by the names of their families."""

    def __init__(self, path: Path) -> None:
        self.values: dict[str, float] = {}
        self.labels: dict[str, dict[str, str]] = {}
        self.kinds: dict[str, str] = {}
        self.helps: dict[str, str] = {}
        for family in text_string_to_metric_families(path.read_text("utf-8")):
            self.kinds[family.name], self.helps[family.name] = family.type, family.documentation
            for sample in family.samples:
                assert sample.name not in self.values, sample
                self.values[sample.name], self.labels[sample.name] = sample.value, dict(sample.labels)

    def __getitem__(self, name: str) -> float:
        return self.values[name]

    def get(self, name: str) -> float | None:
        return self.values.get(name)

    def of(self, program: str, **names: str) -> dict[str, Any]:
        """Return the values without the program's name; ``names`` maps them to the keys of ``--json``."""
        return {key: self.values[f"{program}_{name}"] for key, name in names.items()}
