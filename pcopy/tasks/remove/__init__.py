"""Tasks that remove directory trees and files."""
