"""Tasks for items that a list names, and for directories that must wait for their contents."""
