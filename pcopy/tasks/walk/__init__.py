"""Tasks that walk trees and report what they contain (pwalk)."""
