"""Transports, which carry messages between ranks. Each is one module, so that only the one in use is imported."""
