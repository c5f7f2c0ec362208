"""The version, kept here once: the package metadata is built from it."""

__version__ = "0.16.0"
