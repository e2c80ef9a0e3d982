"""Whole runs of the program, as its users start it."""
