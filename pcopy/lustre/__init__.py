"""Lustre: layouts (stripings) of files and directories, and the servers (OSTs) that store the data of files.

``pcopy.lustre.layouts`` implements ``pcopy.fsio.layout.LayoutPolicy``.
"""
