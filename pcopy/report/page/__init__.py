"""The report as a page for people."""
