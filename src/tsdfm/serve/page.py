"""The page at /."""

from __future__ import annotations


def page() -> str:
    """TODO."""
    return ""
