"""The tar format: members, reading and writing of headers, and the index of an archive.

The modules here work on bytes and streams; they open no files.
"""
