"""`tsdfm sample`, which `--live` shows as it happens: `samples` writes, the view plays."""

from __future__ import annotations

from tsdfm.samples.model import Samples
from tsdfm.samples.run import run as write
from tsdfm.samples.settings import SampleSettings


def run(settings: SampleSettings) -> Samples:
    """Sample, show and save; what the player needs is loaded only where it is asked for."""
    if not settings.live:
        return write(settings)
    from tsdfm.view.terminal import replay

    return write(settings, replay)
