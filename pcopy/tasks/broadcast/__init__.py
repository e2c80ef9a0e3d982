"""Tasks of ``pbcast``: files are read once and sent from host to host, to a directory of each host."""
