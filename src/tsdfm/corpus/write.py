"""Writing the splits of a corpus so that a killed run goes on at the document.

Every `MEMBER` characters both files are cut, synced and recorded in WORK/progress.json together with the place of every
source. The next run with the same settings and files cuts off what was written behind that, and goes on.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.corpus.mixture import mix
from tsdfm.corpus.progress import TextProgress
from tsdfm.corpus.settings import CorpusSettings, SourceSettings
from tsdfm.corpus.source import Document, Place, Reader, Unit
from tsdfm.corpus.split import SPLITS, Spare, split_of
from tsdfm.corpus.store import SplitWriter, Written, read_documents, split_file
from tsdfm.errors import UserError
from tsdfm.settings import to_dict
from tsdfm.store.files import write_json
from tsdfm.store.kinds import CorpusProgress
from tsdfm.store.schema import read_record

PROGRESS = "progress.json"
MEMBER = 1 << 26  # characters between two places from which a killed run can go on, and a reader begin


@dataclass
class State:
    """How far a corpus is: of each source its place, characters taken and counts; of each split what is written."""

    places: list[Place]
    taken: list[int]
    counts: list[Counter[str]]
    splits: dict[str, Written] = field(default_factory=dict)

    @classmethod
    def begin(cls, sources: int) -> State:
        return cls([Place()] * sources, [0] * sources, [Counter() for _ in range(sources)])

    @classmethod
    def of(cls, saved: Mapping[str, Any]) -> State:
        """What `plain` gave."""
        places, counts = [Place(*place) for place in saved["places"]], [Counter(each) for each in saved["counts"]]
        return cls(places, saved["taken"], counts, {split: Written(*saved["splits"][split]) for split in SPLITS})

    def plain(self) -> dict[str, Any]:
        return {"places": self.places, "taken": self.taken, "counts": self.counts, "splits": self.splits}


def key_of(settings: CorpusSettings, worlds: Mapping[str, str], units: Sequence[Sequence[Unit]]) -> str:
    """What a corpus depends on, as far as is known before it is read: settings, worlds, names and sizes of files."""
    files = [[[str(unit.path), unit.size] for unit in each] for each in units]
    return hashlib.sha256(json.dumps([known(to_dict(settings)), worlds, files], sort_keys=True).encode()).hexdigest()


def known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a corpus; a prompt that is none is left out, as corpora made before there were any have it."""
    kept = _asked(settings, "out", "part")
    return {**kept, "sources": [_asked(source) for source in settings.get("sources", ())]}


def _asked(settings: Mapping[str, Any], *without: str) -> dict[str, Any]:
    return {
        name: value for name, value in settings.items() if name not in without and (name, value) != ("prompt", None)
    }


def write_splits(
    settings: CorpusSettings,
    sources: Sequence[SourceSettings],
    units: Sequence[Sequence[Unit]],
    work: Path,
    key: str,
    *,
    spare: bool = True,
) -> State:
    """Write both splits of some units of the sources into `work`, or go on with it; with a text to `spare` if need be.

    A text is spared where one split would be empty (`Spare`).
    """
    found = _open(work, key, len(sources))
    readers = [Reader(*each) for each in zip(sources, units, found.places, strict=True)]
    lone = Spare(settings.seed, settled=not spare or settings.valid <= 0 or bool(found.splits))
    size, last = 0, 0
    weights = [source.weight for source in sources]
    with _writing(work, found) as (writers, write), TextProgress("corpus") as progress:
        progress.documents = sum(place.given for place in found.places)
        for index, document in mix(readers, weights, settings.stop, found.taken):
            split = split_of(document.key, settings.valid, settings.seed)
            write(split, index, document)
            lone.see(split, index, document)
            progress.advance(1, len(document.text))
            size += len(document.text)
            if size - last >= MEMBER and lone.settled:
                last, found.places = size, [reader.place for reader in readers]
                _save(work, key, found, writers)
        found.splits = {split: writer.cut() for split, writer in writers.items()}
    keep, hold = lone.parts(settings.valid)
    return _hold_out(work, lone, keep, hold, len(sources)) if hold else found


def _open(work: Path, key: str, sources: int) -> State:
    """The state of a run that was cut off, or that of a new one in an empty folder."""
    with contextlib.suppress(UserError, KeyError, TypeError, ValueError, OSError):  # none, a damaged one, files moved
        saved = read_record(work / PROGRESS, CorpusProgress)
        state = State.of(saved)
        whole = all(split_file(work, split).stat().st_size >= state.splits[split].bytes for split in SPLITS)
        if saved["key"] == key and len(state.places) == sources and whole:
            return state
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    return State.begin(sources)


def _save(work: Path, key: str, state: State, writers: Mapping[str, SplitWriter]) -> None:
    state.splits = {split: writer.cut() for split, writer in writers.items()}
    write_json(work / PROGRESS, {"key": key, **state.plain()})


Writing = tuple[dict[str, SplitWriter], Callable[[str, int, Document], None]]


@contextlib.contextmanager
def _writing(work: Path, state: State) -> Iterator[Writing]:
    """The writers of both splits, and a function that writes a document of a source into one and counts it."""
    with contextlib.ExitStack() as stack:
        before = state.splits
        writers = {split: stack.enter_context(SplitWriter(work, split, before.get(split))) for split in SPLITS}

        def write(split: str, index: int, document: Document) -> None:
            writers[split].write(document)
            state.counts[index][f"{split}/documents"] += 1
            state.counts[index][f"{split}/characters"] += len(document.text)

        yield writers, write


def _hold_out(work: Path, spare: Spare, keep: str, hold: str, sources: int) -> State:
    """Write the splits again: of the spare text `keep` is for training and `hold` is held out."""
    state = State.begin(sources)
    assert spare.document is not None  # else nothing is held out
    whole = work / "whole"
    whole.mkdir()
    split_file(work, spare.split).rename(split_file(whole, spare.split))
    with _writing(work, state) as (writers, write):
        for index, document in zip(spare.sources, read_documents(whole, spare.split), strict=True):
            mine = document.key == spare.document.key
            if document.prompt:
                write("valid" if mine else "train", index, document)
                continue
            for split, text in (("train", keep), ("valid", hold)) if mine else (("train", document.text),):
                if text:
                    write(split, index, document._replace(text=text))
        state.splits = {split: writer.cut() for split, writer in writers.items()}
    shutil.rmtree(whole)
    what = f"the end of {spare.document.origin}" if keep else spare.document.origin
    terminal.say(f"note: so few documents cannot be shared out by chance: {what} is held out")
    return state


def leave(work: Path) -> None:
    """Remove the folder of a run that ended, unless the next run can go on with it."""
    if not (work / PROGRESS).is_file():
        shutil.rmtree(work, ignore_errors=True)
