"""Lustre: layouts of files and directories, and the OSTs that hold their data.

Implements ``pcopy.fsio.layout.LayoutPolicy``.
"""
