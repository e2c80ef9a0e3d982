"""Measures pcopy, from a checkout: ``python -m bench`` beside others, ``python -m bench.NAME`` one thing of it."""
