"""Tasks of a copy that compresses or decompresses files (``--compress``, ``--decompress``)."""
