"""A trajectory as one still picture (SVG): a few states below each other, methods beside each other.

What has just been written is underlined, what was replaced is slanted, noise is grey: no mark is a colour alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tsdfm.report.page.gather import way_label
from tsdfm.report.page.ways import END, UNKNOWN
from tsdfm.samples.trajectory import Row, State, Trajectory
from tsdfm.terminal import markup, visible

COLUMNS, LINES = 76, 4  # letters of a line, and lines of each state
LETTER, LINE, HEAD, EDGE = 7.83, 19, 26, 18  # pixels, at a letter size of 13
STYLES = {
    "new": 'font-weight="bold" text-decoration="underline" fill="#0b6e4f"',
    "replaced": 'font-style="italic" font-weight="bold" fill="#a63d00"',
    "noise": 'fill="#9aa0a6"',
    "kept": 'fill="#202124"',
}
MASKED = "░░"


def trajectory_image(ways: Sequence[Trajectory], *, text: int = 0, shown: int = 5, lines: int = LINES) -> str:
    """The SVG of text number `text` of each trajectory at `shown` of its states, the first and the last among them."""
    block = HEAD + lines * LINE
    shown = min(shown, max(len(row.steps) for way in ways for row in way.rows) + 1)
    wide, high = COLUMNS * LETTER + 2 * EDGE, EDGE + LINE + shown * block + EDGE / 2
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide * len(ways):.0f} {high:.0f}" role="img" '
        f'aria-label="a text in {ways[0].steps} steps" font-family="monospace" font-size="13">',
        f'<rect width="{wide * len(ways):.0f}" height="{high:.0f}" rx="8" fill="#ffffff" stroke="#dadce0"/>',
    ]
    for column, way in enumerate(ways):
        left, top = column * wide + EDGE, EDGE + 4.0
        out.append(_words(left, top, f"{way_label(way)}, {way.steps} network passes", 'font-weight="bold"'))
        row = way.rows[text]
        states = list(row.replay(way.mask))
        for index in spread(len(states), shown):
            top += HEAD
            out.append(_words(left, top, _said(way, states[index], index), 'fill="#5f6368" font-size="11"'))
            for line in wrapped(way, row, states[index], lines):
                top += LINE
                spans = "".join(f"<tspan {STYLES[kind]}>{markup(part)}</tspan>" for kind, part in line)
                out.append(f'<text x="{left:.0f}" y="{top:.0f}" xml:space="preserve">{spans}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def spread(count: int, shown: int) -> list[int]:
    """`shown` of `count` places, evenly, both ends among them.

    >>> spread(9, 5)
    [0, 2, 4, 6, 8]
    """
    if shown >= count or shown < 2:
        return list(range(count)) if shown >= count else [count - 1]
    return [round(i * (count - 1) / (shown - 1)) for i in range(shown)]


def wrapped(way: Trajectory, row: Row, state: State, lines: int) -> list[list[tuple[str, str]]]:
    """The beginning of a state as `lines` lines of (style, letters), broken between letters."""
    out: list[list[tuple[str, str]]] = [[]]
    room = COLUMNS
    for kind, piece in _pieces(way, row, state):
        while piece:
            part, piece = piece[:room], piece[room:]
            out[-1].append((kind, part))
            room -= len(part)
            if room == 0:
                if len(out) == lines:
                    return out
                out.append([])
                room = COLUMNS
    return out + [[] for _ in range(lines - len(out))]


def _pieces(way: Trajectory, row: Row, state: State) -> Iterator[tuple[str, str]]:
    """The tokens with their marks; the space before a word is not part of its mark."""
    for place, token in enumerate(state.tokens):
        if token == way.mask:
            yield "noise", MASKED + " "
            continue
        end = token == way.end_of_text
        if end and place == 0 and place in row.given:
            continue
        piece = END if end else visible(way.pieces.get(token, UNKNOWN)).replace("\n", "⏎ ")
        space = len(piece) - len(piece.lstrip(" "))
        kind = "kept"
        if place in state.new:
            kind = "new"
        elif place in state.replaced:
            kind = "replaced"
        elif end or (place in state.noise and state.time < 1):
            kind = "noise"
        if space:
            yield "kept", piece[:space]
        if piece[space:]:
            yield kind, piece[space:]


def _said(way: Trajectory, state: State, index: int) -> str:
    """The line above a state."""
    said = [f"step {index} of {way.steps}, t = {state.time:g}"]
    said += [f"{len(state.new)} new, {len(state.replaced)} replaced"] if index else ["noise"]
    said += [f"energy {state.energy:.1f}"] if state.energy is not None else []
    return " · ".join(said)


def _words(left: float, top: float, words: str, style: str) -> str:
    return f'<text x="{left:.0f}" y="{top:.0f}" {style}>{markup(words)}</text>'
