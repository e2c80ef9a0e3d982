"""Tasks that remove directory trees and files: for ``prm``, and for ``--delete`` of a copy."""
