"""A weighted mixture of sources that is the same every time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from tsdfm.corpus.files import Document


def mix(
    streams: Sequence[Iterator[Document]],
    weights: Sequence[float],
    stop: Literal["first", "all"] = "first",
    taken: list[int] | None = None,
) -> Iterator[tuple[int, Document]]:
    """Yield (source, document), always from the source whose share of the characters lags its weight most.

    With weights w and n_i characters taken from source i, the next document comes from argmin_i n_i / w_i. The shares
    are therefore never off by more than the longest document. `first` ends with the source that cannot give the next
    document; `all` goes on with the others. A mixture goes on where another was if it is given the characters that one
    had `taken`, a list which is kept up to date.
    """
    taken = [0] * len(streams) if taken is None else taken
    alive = list(range(len(streams)))
    while alive:
        lagging = min(alive, key=lambda i: taken[i] / weights[i])
        document = next(streams[lagging], None)
        if document is None:
            if stop == "first":
                return
            alive.remove(lagging)
            continue
        taken[lagging] += len(document.text)
        yield lagging, document
