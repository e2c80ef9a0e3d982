"""Tasks that copy files, symbolic links and nodes, and give the copies their names."""
