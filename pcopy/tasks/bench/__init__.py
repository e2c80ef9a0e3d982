"""Tasks of ``pdbench``: measurements of a file system that all ranks make together, step by step."""
