"""How long messages travel: distributions with a given mean, by their names."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

Latency = Callable[[Random], float]
"""Seconds that the next message travels."""


def _fixed(mean: float) -> Latency:
    return lambda random: mean


def _uniform(mean: float) -> Latency:
    return lambda random: mean * (0.5 + random.random())


def _exponential(mean: float) -> Latency:
    """Half of the mean, and a waiting time on top."""
    return lambda random: mean * (0.5 + 0.5 * random.expovariate(1.0))


def _pareto(mean: float) -> Latency:
    """A few messages take a hundred times as long as most: a third of the mean, times a variate whose mean is 3."""
    return lambda random: mean / 3 * random.paretovariate(1.5)


LATENCIES: dict[str, Callable[[float], Latency]] = {
    "fixed": _fixed,
    "uniform": _uniform,
    "exponential": _exponential,
    "pareto": _pareto,
}
"""Each makes a distribution of its mean in seconds: alike, from half to one and a half of it, or with a longer tail."""
