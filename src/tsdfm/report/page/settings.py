"""The settings of `tsdfm report page`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tsdfm.settings import option, required


@dataclass(frozen=True, kw_only=True)
class PageSettings:
    """Write the report of a pipeline's folder as one HTML file."""

    folder: Path = required("pipeline folder: what `tsdfm pipeline --out` made")
    open: bool = option(False, "open the page in the browser")
