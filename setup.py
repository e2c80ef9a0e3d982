"""The part of the build configuration that setup.cfg cannot express: cffi compiles the C backend, if possible."""

from setuptools import setup

setup(cffi_modules=["pcopy/fsio/backend/build_native.py:builder"])
