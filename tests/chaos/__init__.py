"""Real jobs that are killed, lose power or disks, and are resumed; compared by oracles in the end."""
