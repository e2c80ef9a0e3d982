"""Items that a list names, and directories that wait for what is in them."""
