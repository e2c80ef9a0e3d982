"""The task engine: runs tasks on many ranks. It does not depend on files or file systems."""
