"""The parallel programs (``pcopy``, ``pverify``, ``ptar`` and others), one module each: how a program checks its
arguments and prepares its job, which phases the job has, and what is printed at the end. Also the code that these
modules share.
"""
