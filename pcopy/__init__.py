"""pcopy: copies datasets that are too large for ``cp`` and ``rsync``.

The functions of the interface for Python, such as ``pcopy.copy``, are loaded from ``pcopy.api`` when they are first
used, because each program imports this module when it starts. ``__init__.pyi`` lists them with their types.
"""

import sys

__version__ = "0.1.0"
"""Version of the package and of its programs."""

OLDEST_PYTHON = (3, 11)
"""The oldest version of Python with which the programs run; ``python_requires`` in setup.cfg says the same."""

if sys.version_info < OLDEST_PYTHON:
    from pcopy.old_python import refuse

    refuse(OLDEST_PYTHON)

_INTERFACE = {
    "errors": "Different Error InternalError InvalidOption ItemsFailed Refused Stopped",
    "functions": (
        "archive change_modes compare copy discard extract jobs remove restripe resume sign start sync verify walk"
    ),
    "results": (
        "ArchiveResult ChangeResult CompareResult CopyResult Difference Event ExtractResult FailedItem Notice Progress "
        "RemoveResult StripeResult UnfinishedJob"
    ),
    "running": "RunningJob",
    "shutil_like": "copytree rmtree",
    "walking": "Entry Walk",
}
"""The names of the interface for Python, by the module of ``pcopy.api`` that defines them."""

_OTHER_NAMES = {
    "mirror": "sync",
    "rsync": "sync",
    "psync": "sync",
    "copy2": "copy",
    "copyfile": "copy",
    "cp": "copy",
    "move": "copy and pcopy.remove",
    "delete": "remove",
    "rm": "remove",
    "prm": "remove",
    "unlink": "remove",
    "chmod": "change_modes",
    "chown": "change_modes",
    "pchmod": "change_modes",
    "tar": "archive",
    "make_archive": "archive",
    "ptar": "archive and pcopy.extract",
    "unpack": "extract",
    "untar": "extract",
    "unpack_archive": "extract",
    "find": "walk",
    "ls": "walk",
    "pwalk": "walk",
    "scandir": "walk",
    "pverify": "verify, pcopy.compare and pcopy.sign",
    "stripe": "restripe",
    "pstripe": "restripe",
}
"""What users may mean by names that the interface does not have."""

__all__ = sorted(name for names in _INTERFACE.values() for name in names.split())  # noqa: PLE0605


def _attribute(name):
    """Return the object of the interface that has this name."""
    from importlib import import_module

    module = next(module for module, names in _INTERFACE.items() if name in names.split())
    return getattr(import_module("pcopy.api." + module), name)


def _function_with_modules(package, name):
    """Return the function that has the name of a subpackage. The loaded modules of the subpackage are attributes of the
    function, so that ``import pcopy.walk.globbing as globbing`` finds them.
    """
    function = package.__dict__.get(name) or _attribute(name)
    loaded = sys.modules.get(__name__ + "." + name)
    modules = {key: value for key, value in vars(loaded).items() if isinstance(value, type(sys))} if loaded else {}
    function.__dict__.update(modules)
    return function


def _property(name):
    """Return a property for a function that has the same name as a subpackage.

    Importing a module of the subpackage would replace the function: Python stores each imported subpackage as an
    attribute of its package. The setter ignores that; ``from pcopy.walk import ...`` does not need the attribute. The
    deleter restores the function, as ``unittest.mock.patch`` needs.
    """
    return property(
        lambda package: _function_with_modules(package, name),
        lambda package, value: None if isinstance(value, type(sys)) else package.__dict__.update({name: value}),
        lambda package: package.__dict__.pop(name, None),
    )


class _Package(type(sys)):
    """The type of this module: it loads the interface at the first use."""

    archive, jobs, walk = map(_property, ("archive", "jobs", "walk"))

    def __getattr__(self, name):
        if name in __all__:
            return _attribute(name)
        advice = "; use pcopy." + _OTHER_NAMES[name] if name in _OTHER_NAMES else ""
        raise AttributeError("module 'pcopy' has no attribute %r%s" % (name, advice), name=name, obj=self)  # noqa: UP031

    def __dir__(self):
        return sorted(set(self.__dict__).union(__all__))


sys.modules[__name__].__class__ = _Package
