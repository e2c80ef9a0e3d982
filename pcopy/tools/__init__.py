"""The programs that run on the engine, one module each (job preparation, phases and final report), and the code that
they share.
"""
