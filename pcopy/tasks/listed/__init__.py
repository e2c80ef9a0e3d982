"""Tasks for items that a list names (``--from``), and for directories that must wait for their contents."""
