"""Tasks of ``pbcast``: files are read once and sent from host to host; each host writes them to its own directory."""
