"""Looks after a rank while it works: signals, and lines about silent ranks."""
