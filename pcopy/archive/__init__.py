"""The tar format: members, reading and writing of headers, and the index of an archive. It knows no tasks, and opens no
files."""
