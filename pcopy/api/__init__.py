"""The interface for Python: functions that run the programs in child processes (docs/howto/python.md).

``pcopy/__init__.py`` re-exports the names. The process of the caller loads neither the engine nor the modules of the
programs: what it needs to know of the options is in ``keywords.py``, which docs/reference/draw_python.py generates.
"""
