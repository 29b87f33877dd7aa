"""The report as one self-contained HTML file."""

from __future__ import annotations

from pathlib import Path

__all__ = ["build_page"]


def build_page(folder: Path) -> Path:
    """Write OUT/report/index.html from what lies in the pipeline's folder OUT, and return its path."""
    from tsdfm.report.page.build import build_page as build  # torch is not loaded for the settings beside this

    return build(folder)
