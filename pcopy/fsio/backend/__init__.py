"""Backends: the C and Python code that carries out batches of file operations on many small files."""
