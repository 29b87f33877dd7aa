"""The corpus stage: sources → mixture → splits → a folder with `train.jsonl.gz`, `valid.jsonl.gz` and a manifest."""

from __future__ import annotations

import contextlib
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.corpus.mixture import mix
from tsdfm.corpus.progress import TextProgress
from tsdfm.corpus.settings import CorpusSettings, SourceSettings
from tsdfm.corpus.source import Document, find_files, read
from tsdfm.corpus.split import SPLITS, Spare, split_of
from tsdfm.corpus.store import SplitWriter, read_documents, split_file
from tsdfm.errors import UserError
from tsdfm.settings import to_dict


def run(settings: CorpusSettings) -> Path:
    """Make the corpus and return its folder. A finished corpus of the same settings and inputs is left as it is."""
    from tsdfm.store.files import disk, sync_folder
    from tsdfm.store.lock import clear, held

    sources, out = settings.all_sources(), settings.out
    inputs, lock = _local_inputs(sources, out), out.with_name(f".{out.name}.lock")
    if _finished(settings, inputs):
        clear(out, lock)
        return _tell(out, " (there already)")
    with held(out, lock):
        if _finished(settings, inputs):  # by another process, in between
            return _tell(out, " (there already)")
        work = out.with_name(f".{out.name}.tmp-corpus")
        try:
            with disk(out):
                shutil.rmtree(work, ignore_errors=True)
                work.mkdir(parents=True)
                counts = _write(settings, sources, work)
                _finish(settings, work, counts, inputs)
                work.rename(out)
                sync_folder(out.parent)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    return _tell(out)


def _tell(out: Path, more: str = "") -> Path:
    """Say what was made, where it lies and what comes next."""
    from tsdfm.store.manifest import read_manifest

    train, valid = (read_manifest(out)["splits"][split] for split in SPLITS)
    made = f"{documents(train)}, {terminal.short(train['characters'])} characters"
    held = f"{documents(valid)} held out ({terminal.short(valid['characters'])} characters)"
    told = f"{made}, and {held if valid['documents'] else 'nothing held out'}{more}"
    terminal.made("corpus", told, out, "tokens", "--corpus", out, "--out", out.parent / "tokens")
    return out


def documents(split: dict[str, int]) -> str:
    """`1,234 documents`."""
    return f"{split['documents']:,} document{'s' if split['documents'] != 1 else ''}"


def _local_inputs(sources: tuple[SourceSettings, ...], out: Path) -> dict[str, Path]:
    """The files and folders that are read, each under a name of its own; a missing one is answered at once."""
    inputs: dict[str, Path] = {}
    for number, source in enumerate(sources):
        if source.path is None:
            continue
        find_files(source)
        if out.resolve().is_relative_to(source.path.resolve()):
            raise UserError(f"--out {out} lies inside the source {source.path}: it would be read as text next time")
        inputs[f"source-{number}"] = source.path
    return inputs


def _finished(settings: CorpusSettings, inputs: dict[str, Path]) -> bool:
    from tsdfm.store.hashes import check_sizes, listed
    from tsdfm.store.manifest import NAME, describe, read_manifest

    out = settings.out
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    if not out.is_dir() or not (out / NAME).is_file():
        raise UserError(f"{out} is in the way: it is not a corpus; remove it or give another --out")
    found = read_manifest(out)
    worlds = _worlds(settings.all_sources())
    if found.get("stage") == "corpus" and _same(found["settings"], settings) and found.get("worlds") == worlds:
        hashes = {name: describe(path)["sha256"] for name, path in inputs.items()}
        if hashes == {name: there["sha256"] for name, there in found["inputs"].items()}:
            check_sizes(out, listed(out))
            return True
    raise UserError(f"{out} already holds something made with other settings or texts: remove it or give another --out")


def _worlds(sources: tuple[SourceSettings, ...]) -> dict[str, str]:
    """The fingerprints of the worlds among the sources: one may change with a new version, or with its weights."""
    from tsdfm.corpus.storyteller import WEIGHTS, folder_of
    from tsdfm.corpus.sums import sums_named
    from tsdfm.corpus.world import world_named
    from tsdfm.store.files import file_sha256

    found = {}
    for source in sources:
        kind, which = source.world() or ("", "")
        if kind == "world":
            found[str(source.name)] = world_named(which or "full").fingerprint
        elif kind == "sums":
            found[str(source.name)] = sums_named(which or "large").fingerprint
        elif kind:
            found[source.label] = file_sha256(folder_of(which) / WEIGHTS)
    return dict(sorted(found.items()))


def _same(found: dict[str, Any], settings: CorpusSettings) -> bool:
    return _known(found) == _known(to_dict(settings))


def _known(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What decides a corpus; a prompt that is none is left out, as corpora made before there were any have it."""
    kept = {name: value for name, value in settings.items() if name != "out" and (name, value) != ("prompt", None)}
    return {**kept, "sources": [_known(source) for source in settings.get("sources", ())]}


def _write(settings: CorpusSettings, sources: tuple[SourceSettings, ...], work: Path) -> list[Counter[str]]:
    """Write both splits; returns, for each source, the counts `train/documents`, `train/characters`, …"""
    counts: list[Counter[str]] = [Counter() for _ in sources]
    streams = [read(source) for source in sources]
    weights = [source.weight for source in sources]
    spare = Spare(settings.seed)
    with _writing(work, counts) as write, TextProgress("corpus") as progress:
        for index, document in mix(streams, weights, settings.stop):
            split = split_of(document.key, settings.valid, settings.seed)
            write(split, index, document)
            if settings.valid > 0:
                spare.see(split, index, document)
            progress.advance(1, len(document.text))
    keep, hold = spare.parts(settings.valid)
    return _hold_out(work, spare, keep, hold, len(sources)) if hold else counts


@contextlib.contextmanager
def _writing(work: Path, counts: list[Counter[str]]) -> Iterator[Callable[[str, int, Document], None]]:
    """A function that writes a document of a source into a split, and counts it."""
    with contextlib.ExitStack() as stack:
        writers = {split: stack.enter_context(SplitWriter(work, split)) for split in SPLITS}

        def write(split: str, index: int, document: Document) -> None:
            writers[split].write(document)
            counts[index][f"{split}/documents"] += 1
            counts[index][f"{split}/characters"] += len(document.text)

        yield write


def _hold_out(work: Path, spare: Spare, keep: str, hold: str, sources: int) -> list[Counter[str]]:
    """Write the splits again: of the spare text `keep` is for training and `hold` is held out."""
    counts: list[Counter[str]] = [Counter() for _ in range(sources)]
    assert spare.document is not None  # else nothing is held out
    whole = work / "whole"
    whole.mkdir()
    split_file(work, spare.split).rename(split_file(whole, spare.split))
    with _writing(work, counts) as write:
        for index, document in zip(spare.sources, read_documents(whole, spare.split), strict=True):
            mine = document.key == spare.document.key
            if document.prompt:
                write("valid" if mine else "train", index, document)
                continue
            for split, text in (("train", keep), ("valid", hold)) if mine else (("train", document.text),):
                if text:
                    write(split, index, document._replace(text=text))
    shutil.rmtree(whole)
    what = f"the end of {spare.document.origin}" if keep else spare.document.origin
    terminal.say(f"note: so few documents cannot be shared out by chance: {what} is held out")
    return counts


def _finish(settings: CorpusSettings, work: Path, counts: list[Counter[str]], inputs: dict[str, Path]) -> None:
    from tsdfm.store.files import file_sha256
    from tsdfm.store.manifest import write_manifest

    totals = sum(counts, Counter())
    if not totals["train/documents"]:
        why = f"all {totals['valid/documents']} documents were held out" if totals else "no document has any text"
        raise UserError(f"the corpus is empty ({why}): check the sources, limit and valid")
    splits = {}
    for split in SPLITS:
        file = split_file(work, split)
        splits[split] = {**_both(totals, split), "bytes": file.stat().st_size, "sha256": file_sha256(file)}
    labels = [source.label for source in settings.all_sources()]
    shares = [{"source": label, **{s: _both(c, s) for s in SPLITS}} for label, c in zip(labels, counts, strict=True)]
    write_manifest(
        work,
        stage="corpus",
        settings=settings,
        inputs=inputs,
        extra={"splits": splits, "sources": shares, "worlds": _worlds(settings.all_sources())},
    )


def _both(counts: Counter[str], split: str) -> dict[str, int]:
    return {"documents": counts[f"{split}/documents"], "characters": counts[f"{split}/characters"]}
