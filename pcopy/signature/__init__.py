"""Signatures of datasets: digests of contents and directories, and the files that store them. Independent of tasks."""
