"""The same files to a directory of each host: read once, and passed on from host to host."""
