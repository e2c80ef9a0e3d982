"""Types of the module that cffi makes of ``native/backend.h`` (``build_native.py``)."""

from typing import Any

ffi: Any
lib: Any
