"""The tasks that the engine (``pcopy.engine``) runs for all of pcopy's programs. A module contains one kind of task, or
several related kinds.
"""
