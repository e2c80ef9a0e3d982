"""Tasks that copy inodes with several names: one name is copied, and the others become hard links to the copy."""
