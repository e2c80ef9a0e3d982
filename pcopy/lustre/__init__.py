"""Lustre: layouts of files and directories, and which OSTs they lie on. Fills ``pcopy.fsio.layout.Layout``."""
