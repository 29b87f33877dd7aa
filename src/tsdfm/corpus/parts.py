"""One part of a corpus, and all of them joined by a manifest.

OUT/train-00003-of-00008.jsonl.gz     the documents of a part that are for training, in the order of the source
OUT/valid-00003-of-00008.jsonl.gz     those held out
OUT/part-00003-of-00008.json          what the part holds; gone once the manifest names the files of all parts

A part reads a stretch of the source's files, or of a world's stories. Which split a document is in depends on its text
alone, so the parts one after another are the documents that one process would have written.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tsdfm.corpus.run import about_file, about_text, check_any, worlds_of
from tsdfm.corpus.settings import CorpusSettings, SourceSettings
from tsdfm.corpus.source import Unit, units_of
from tsdfm.corpus.split import SPLITS
from tsdfm.corpus.store import split_file
from tsdfm.corpus.write import PROGRESS, State, key_of, leave, write_splits
from tsdfm.errors import UserError
from tsdfm.store.files import disk, file_sha256, sync_folder, write_json
from tsdfm.store.hashes import check_sizes, joint_sha256, listed
from tsdfm.store.kinds import CorpusPart, Input, PartRecord
from tsdfm.store.manifest import NAME, input_sha256, read_manifest, spelled, write_manifest
from tsdfm.store.parts import Part, join, mine, tidy
from tsdfm.store.schema import read_record

OWN = ("part-", *(f"{split}-" for split in SPLITS))


def run_part(settings: CorpusSettings, part: Part) -> bool:
    """Make one part, and the manifest if all others are there. Is the corpus whole now?"""
    source, out = _one_source(settings), settings.out
    units = units_of(source)
    if len(units) == 1 and source.path is None:
        raise UserError(f"{source.label} cannot be read in parts: fetch its files and give their folder by --path")
    key = key_of(settings, worlds_of((source,)), [units])
    if _finished(out, key):
        tidy(out)
        return True
    with mine(out, part):
        _check_place(out, key)
        if not (out / part.record).is_file():
            _make(settings, source, units, part, key)
    return join(out, part, CorpusPart, partial(_join, settings, key))


def _one_source(settings: CorpusSettings) -> SourceSettings:
    """The source, if it can be read in parts."""
    sources = settings.all_sources()
    if len(sources) > 1:
        raise UserError("a mixture is made in one process: make each source in parts, then mix their folders")
    if sources[0].limit is not None and sources[0].world() is None:
        raise UserError("limit counts the documents before it, which a part has not read: leave out limit, or part")
    return sources[0]


def _finished(out: Path, key: str) -> bool:
    if not (out / NAME).is_file():
        return False
    if read_manifest(out).get("key") != key:
        raise UserError(
            f"{out} already holds something made with other settings or texts: remove it or give another --out"
        )
    check_sizes(out, listed(out))
    return True


def _check_place(out: Path, key: str) -> None:
    """Refuse a folder of other things, or of parts of another corpus."""
    if any(not path.name.startswith((".", *OWN)) for path in out.iterdir()):
        raise UserError(f"{out} is in the way: it is not a corpus in parts; remove it or give another --out")
    if any(read_record(record, PartRecord)["key"] != key for record in out.glob("part-*.json")):
        raise UserError(f"{out} holds parts made with other settings or texts: remove it or give another --out")


def _make(settings: CorpusSettings, source: SourceSettings, units: Sequence[Unit], part: Part, key: str) -> None:
    """Write the part's files and then its record; what is hashed of the source is what the part has read."""
    out, share = settings.out, part.share([unit.size for unit in units])
    own, work = units[share.start : share.stop], settings.out / f".part-{part.name}"
    try:
        with disk(out):
            state = write_splits(settings, [source], [own], work, f"{key} {part.name}", spare=False)
            record: dict[str, Any] = {"key": key, "done": True, "counts": state.counts[0], "splits": {}}
            for split in SPLITS:
                file = out / f"{split}-{part.name}.jsonl.gz"
                split_file(work, split).replace(file)
                record["splits"][split] = {"file": file.name, **about_file(file, split, state)}
            sync_folder(out)
            record["inputs"] = {spelled(path): file_sha256(path) for path in {unit.path for unit in own} if path}
            write_json(out / part.record, record)
            (work / PROGRESS).unlink(missing_ok=True)
    finally:
        leave(work)


def _join(settings: CorpusSettings, key: str, records: list[dict[str, Any]]) -> None:
    """Write the manifest of all parts."""
    state = State.begin(1)
    state.counts[0] = sum((Counter(record["counts"]) for record in records), Counter())
    check_any(state.counts)
    if settings.valid > 0 and not state.counts[0]["valid/documents"]:
        raise UserError("so few documents cannot be shared out by chance: remove the folder, and run it without --part")
    splits = {split: _split([record["splits"][split] for record in records]) for split in SPLITS}
    hashes = {path: sha256 for record in records for path, sha256 in record["inputs"].items()}
    extra = {"key": key, "parts": len(records), **about_text(settings, state, splits)}
    path, whole = settings.all_sources()[0].path, replace(settings, part=None)
    inputs = {} if path is None else {"source-0": Input(path=str(path), sha256=input_sha256(path, hashes))}
    write_manifest(settings.out, stage="corpus", settings=whole, inputs=inputs, extra=extra)


def _split(files: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a manifest says of a split in several files; its hash is that of theirs."""
    total = {name: sum(file[name] for file in files) for name in ("documents", "characters", "bytes")}
    return {**total, "sha256": joint_sha256(files), "files": list(files)}
