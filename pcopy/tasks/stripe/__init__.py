"""Layouts of files that are there: looked at, and changed."""
