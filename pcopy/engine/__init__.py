"""The engine: runs tasks on many ranks. It knows nothing of files."""
