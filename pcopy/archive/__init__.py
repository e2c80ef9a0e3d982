"""Tar archives as bytes: members, their headers, written and read, and the index. Knows no tasks, and opens nothing."""
