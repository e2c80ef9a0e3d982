"""Tasks that create, extract and verify tar archives (the program ``ptar``)."""
