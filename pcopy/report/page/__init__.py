"""The report as an HTML page for people."""
