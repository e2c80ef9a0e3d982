"""Files, symbolic links and nodes: copied, and given their names."""
