"""Benchmarks of pcopy, to be run from a checkout.

``python -m bench`` compares pcopy with other programs; ``python -m bench.NAME`` measures one property.
"""
