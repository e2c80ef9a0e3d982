"""Backends: code, in C and in Python, that performs an operation on many small files in one call (a batch)."""
