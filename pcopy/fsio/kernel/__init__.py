"""The inner loops over many small files."""
