"""Jobs between their runs: where they are kept, listed, gone on with and given up."""
