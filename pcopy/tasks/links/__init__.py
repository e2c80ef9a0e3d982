"""Tasks that copy inodes with several names (hard links)."""
