"""`tsdfm view`: find the trajectories, then show them in the browser, over a port, in the terminal, or as a picture."""

from __future__ import annotations

import os
import tempfile
import webbrowser
from pathlib import Path

from tsdfm.report.table import write_text
from tsdfm.view.find import find_trajectories
from tsdfm.view.page import trajectory_page
from tsdfm.view.settings import ViewSettings


def run(settings: ViewSettings) -> Path | None:
    """Show; returns the page or picture that was written, if one was."""
    ways = find_trajectories(settings)
    if settings.terminal:
        from tsdfm.view.terminal import replay_all

        replay_all(ways, seconds=settings.seconds)
        return None
    if settings.image is not None:
        from tsdfm.view.image import trajectory_image

        picture = write_text(settings.image, trajectory_image(ways))
        print(picture)
        return picture
    text = trajectory_page(ways)
    path = None
    if settings.out is not None or settings.serve is None:
        path = write_text(settings.out or temporary(), text)
        print(path)
    if settings.serve is not None:
        from tsdfm.view.serve import serve

        serve(text.encode("utf-8", "replace"), settings.serve)
    elif path is not None and not settings.no_open:
        webbrowser.open(path.resolve().as_uri())
    return path


def temporary() -> Path:
    """A new file in the temporary folder; it stays, as the browser reads it after this command has ended."""
    handle, name = tempfile.mkstemp(prefix="tsdfm-view-", suffix=".html")
    os.close(handle)
    return Path(name)
