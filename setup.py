"""What setup.cfg cannot say: the kernel in C is built if it can be."""

from setuptools import setup

setup(cffi_modules=["pcopy/fsio/kernel/build_native.py:builder"])
