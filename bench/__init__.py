"""Programs that measure pcopy; each runs as ``python -m bench.NAME`` from a checkout."""
