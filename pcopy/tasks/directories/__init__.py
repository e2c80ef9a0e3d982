"""Tasks that scan, finish and sync directories."""
