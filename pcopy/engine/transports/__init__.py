"""What carries messages between ranks. One module each, so that none is imported but the one in use."""
