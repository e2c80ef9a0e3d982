"""The dataset's signature: digests of contents and directories, and the files that hold them. Knows no tasks."""
