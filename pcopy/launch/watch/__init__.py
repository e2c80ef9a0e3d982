"""Supervision of a working rank: signals, and messages about silent ranks."""
