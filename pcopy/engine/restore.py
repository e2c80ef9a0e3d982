"""How a rank of a resumed job gets its share of what remains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pcopy.engine.node import Node
from pcopy.engine.task import Task


def restore(node: Node, phase: int, tasks: Iterable[Task], counts: Sequence[int]) -> None:
    """Before the start: ``tasks`` remain in ``phase``, which had begun, and later ones; ``counts`` are added up.

    What remains of earlier phases was held until then (``pcopy.engine.driver.Outcome``); it is run again in this one.
    """
    node.restored = phase
    node.queue.begin_phase(phase)
    for task in tasks:
        node.queue.push(task._replace(phase=max(phase, task.phase)))
    for index, count in enumerate(counts):
        node.counters[index] += count
