"""The part of the build configuration that setup.cfg cannot express: cffi compiles the C backend, if possible.

Environment variables:

- PCOPY_PREBUILT_BACKEND: path of a compiled C backend, which is packed instead of compiling one. The build fails if it
  does not exist. packaging/build_release.py sets it.
- PCOPY_XXHASH_DIRECTORY: see pcopy/fsio/backend/build_native.py.
"""

import os
import shutil
import sys
import sysconfig
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

PREBUILT = os.environ.get("PCOPY_PREBUILT_BACKEND")
IS_FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class BuildBackend(build_ext):
    """Builds the C backend, or copies a prebuilt one, and removes files of older builds."""

    def run(self) -> None:
        # A file of an older build would be packed, and loaded instead of the new one (_native.abi3.so).
        for root in {self.build_lib, "."} if self.inplace else {self.build_lib}:
            for old in Path(root, "pcopy/fsio/backend").glob("_native.cpython-*.so"):
                old.unlink()
        super().run()

    def build_extension(self, ext: Extension) -> None:
        if PREBUILT is None:
            super().build_extension(ext)
            return
        path = Path(self.get_ext_fullpath(ext.name))
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(PREBUILT, path)
        path.chmod(0o755)


class SourceDistribution(sdist):
    """Builds the source distribution, with setup.cfg as it is: setuptools adds a section to it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        shutil.copyfile("setup.cfg", Path(base_dir, "setup.cfg"))


options: dict[str, Any] = {}
if PREBUILT is not None:
    options["ext_modules"] = [Extension("pcopy.fsio.backend._native", [], py_limited_api=True)]
elif IS_FREE_THREADED:
    print("pcopy: a free-threaded Python cannot load the C backend: pcopy will use its Python backend", file=sys.stderr)
else:
    options["cffi_modules"] = ["pcopy/fsio/backend/build_native.py:builder"]
if not IS_FREE_THREADED:
    options["options"] = {"bdist_wheel": {"py_limited_api": "cp311"}}

setup(cmdclass={"build_ext": BuildBackend, "sdist": SourceDistribution}, **options)
