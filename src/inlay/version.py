"""The version of the installed package."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("inlay")
except PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
