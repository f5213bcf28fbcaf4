"""The version, for whatever writes it into a file; known also where the package runs from a source tree."""

__version__ = "0.1.0"
