"""Jobs between their runs: recording, listing, resuming and discarding them."""
