"""The viewer's page: the report's player by itself, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tsdfm.report.page.gather import styles_of, way_label
from tsdfm.report.page.markup import document
from tsdfm.report.page.ways import player_data, players
from tsdfm.samples.trajectory import Trajectory


def trajectory_page(ways: Sequence[Trajectory]) -> str:
    """Trajectories as HTML; those of one source, seed and length side by side."""
    styles, groups = styles_of(dict.fromkeys(map(way_label, ways))), players(ways)
    return document(
        "view.html",
        title=f"{', '.join(styles)} · tsdfm view",
        data={"players": [player_data(group, styles) for group in groups]},
        groups=groups,
        styles=styles,
    )
