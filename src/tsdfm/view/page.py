"""The viewer's page: the report's player by itself, in one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from tsdfm.report.page.build import SCRIPTS, STYLES
from tsdfm.report.page.gather import way_label
from tsdfm.report.page.markup import document, esc
from tsdfm.report.page.ways import player, player_data, players
from tsdfm.samples.trajectory import Trajectory


def trajectory_page(ways: Sequence[Trajectory]) -> str:
    """Trajectories as HTML; those of one source, seed and length side by side."""
    methods = list(dict.fromkeys(way_label(way) for way in ways))
    groups = players(ways)
    body = [
        '<header><p class="kind">tsdfm view</p><h1>How the texts come to be</h1>',
        '<p class="lead">The same seed, so the same noise, written into text by each method.</p></header><main>',
    ]
    for index, group in enumerate(groups):
        title = f"{group[0].source} source, seed {group[0].seed}".capitalize()
        body.append(f"<section><h2>{esc(title)}</h2>{player(index, group, methods, start='noise')}</section>")
    data = {"charts": {}, "players": [player_data(group, methods) for group in groups]}
    return document(
        title=f"{', '.join(methods)} · tsdfm view",
        body="".join([*body, "</main>"]),
        data=data,
        scripts=SCRIPTS,
        styles=STYLES,
    )
