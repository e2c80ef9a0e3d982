"""Measures a file system: steps that all ranks do together, and what each of them has measured."""
