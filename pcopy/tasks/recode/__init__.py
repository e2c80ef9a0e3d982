"""Files that are compressed, or decompressed, on their way (``--compress``, ``--decompress``)."""
