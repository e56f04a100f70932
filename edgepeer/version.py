"""The version of this package."""

__all__ = ["VERSION"]

VERSION = "0.1.0"
