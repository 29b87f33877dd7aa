"""`tsdfm sample`, which `--live` and `--stream` show as it happens: `samples` writes, the view plays."""

from __future__ import annotations

from tsdfm.samples.run import run as write
from tsdfm.samples.settings import SampleSettings
from tsdfm.samples.written import Samples


def run(settings: SampleSettings) -> Samples:
    """Sample, show and save; what the players need is loaded only where it is asked for."""
    if settings.stream:
        from tsdfm.view.stream import stream

        shown = stream()
        try:
            return write(settings, on_pass=shown, show=shown.show)
        finally:
            shown.close()
    if not settings.live:
        return write(settings)
    from tsdfm.view.terminal import replay

    return write(settings, replay)
