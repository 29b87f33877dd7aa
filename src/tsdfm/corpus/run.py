"""The corpus stage: sources → mixture → splits → a folder with `train.jsonl.gz`, `valid.jsonl.gz` and a manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsdfm import terminal
from tsdfm.corpus.settings import CorpusSettings, SourceSettings
from tsdfm.corpus.source import find_files, units_of
from tsdfm.corpus.split import SPLITS
from tsdfm.corpus.store import read_documents, split_file
from tsdfm.corpus.write import PROGRESS, State, key_of, known, leave, write_splits
from tsdfm.errors import UserError
from tsdfm.settings import to_dict


def run(settings: CorpusSettings) -> Path:
    """Make the corpus, or one part of it, and return its folder. Run it again after a kill and it goes on.

    A finished corpus of the same settings and inputs is left as it is.
    """
    from tsdfm.corpus.parts import run_part
    from tsdfm.store.lock import clear, held
    from tsdfm.store.parts import part_of

    sources, out = settings.all_sources(), settings.out
    inputs, lock = _local_inputs(sources, out), out.with_name(f".{out.name}.lock")
    if (part := part_of(settings.part)) is not None:
        return tell(out) if run_part(settings, part) else out
    if _finished(settings, inputs):
        clear(out, lock)
        return tell(out, " (there already)")
    with held(out, lock):
        if _finished(settings, inputs):  # by another process, in between
            return tell(out, " (there already)")
        _make(settings, sources, inputs)
    return tell(out)


def _make(settings: CorpusSettings, sources: tuple[SourceSettings, ...], inputs: dict[str, Path]) -> None:
    from tsdfm.store.files import disk, sync_folder

    out = settings.out
    work = out.with_name(f".{out.name}.tmp-corpus")
    try:
        with disk(out):
            units = [units_of(source) for source in sources]
            key = key_of(settings, worlds_of(sources), units)
            _finish(settings, work, write_splits(settings, sources, units, work, key), inputs)
            (work / PROGRESS).unlink(missing_ok=True)
            work.rename(out)
            sync_folder(out.parent)
    finally:
        leave(work)


def tell(out: Path, more: str = "") -> Path:
    """Say what was made, where it lies and what comes next."""
    from tsdfm.store.manifest import read_manifest

    train, valid = (read_manifest(out)["splits"][split] for split in SPLITS)
    made = f"{documents(train)}, {terminal.short(train['characters'])} characters"
    held = f"{documents(valid)} held out ({terminal.short(valid['characters'])} characters)"
    told = f"{made}, and {held if valid['documents'] else 'nothing held out'}{more}"
    first = next(read_documents(out, "train"), None)
    layout = ["--layout", "prompt"] if first is not None and first.prompt else []
    terminal.made("corpus", told, out, "tokens", "--corpus", out, *layout, "--out", out.parent / "tokens")
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
    worlds = worlds_of(settings.all_sources())
    if (
        found.get("stage") == "corpus"
        and known(found["settings"]) == known(to_dict(settings))
        and found.get("worlds") == worlds
    ):
        hashes = {name: describe(path)["sha256"] for name, path in inputs.items()}
        if hashes == {name: there["sha256"] for name, there in found["inputs"].items()}:
            check_sizes(out, listed(out))
            return True
    raise UserError(f"{out} already holds something made with other settings or texts: remove it or give another --out")


def worlds_of(sources: tuple[SourceSettings, ...]) -> dict[str, str]:
    """The fingerprints of the worlds among the sources: one may change with a new version, or with its weights."""
    from tsdfm.corpus.storyteller import weights_of
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
            found[source.label] = file_sha256(weights_of(which))
    return dict(sorted(found.items()))


def _finish(settings: CorpusSettings, work: Path, state: State, inputs: dict[str, Path]) -> None:
    from tsdfm.store.manifest import write_manifest

    check_any(state.counts)
    splits = {split: about_file(split_file(work, split), split, state) for split in SPLITS}
    write_manifest(work, stage="corpus", settings=settings, inputs=inputs, extra=about_text(settings, state, splits))


def check_any(counts: list[Counter[str]]) -> None:
    """Refuse a corpus that has nothing to train on."""
    totals = sum(counts, Counter())
    if not totals["train/documents"]:
        why = f"all {totals['valid/documents']} documents were held out" if totals else "no document has any text"
        raise UserError(f"the corpus is empty ({why}): check the sources, limit and valid")


def about_file(path: Path, split: str, state: State) -> dict[str, Any]:
    """What a manifest says of a split's file; of its gzip members only where there are several."""
    from tsdfm.store.files import file_sha256

    members = state.splits[split].members
    about = {**_both(sum(state.counts, Counter()), split), "bytes": path.stat().st_size, "sha256": file_sha256(path)}
    return {**about, "members": members} if len(members) > 1 else about


def about_text(settings: CorpusSettings, state: State, splits: Mapping[str, Any]) -> dict[str, Any]:
    """What a manifest says of a corpus."""
    sources = settings.all_sources()
    counts = zip([source.label for source in sources], state.counts, strict=True)
    shares = [{"source": label, **{split: _both(count, split) for split in SPLITS}} for label, count in counts]
    return {"splits": splits, "sources": shares, "worlds": worlds_of(sources)}


def _both(counts: Counter[str], split: str) -> dict[str, int]:
    return {"documents": counts[f"{split}/documents"], "characters": counts[f"{split}/characters"]}
