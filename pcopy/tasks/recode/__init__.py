"""Tasks of a copy that recodes files: compresses or decompresses them on the way (``--compress``, ``--decompress``)."""
