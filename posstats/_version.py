"""The version, importable without importing the public names."""

__version__ = "0.1.0"
