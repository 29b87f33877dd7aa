"""`tsdfm import`: a public checkpoint becomes one of our runs, which every other command takes."""

from __future__ import annotations

from pathlib import Path

from tsdfm import terminal
from tsdfm.nn.ddit import parameters
from tsdfm.nn.layers import without_weights
from tsdfm.public.model import PublicModel, read_public
from tsdfm.public.settings import ImportSettings
from tsdfm.store.checkpoint import Store
from tsdfm.store.files import write_json
from tsdfm.store.folder import must_be_new, whole
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import make_manifest

REST = "left_over"  # the part of a checkpoint that only an export reads


def run(settings: ImportSettings) -> Path:
    """Read, recognise, check and write; returns the run folder."""
    must_be_new(settings.out, "--out")
    found = read_public(
        settings.source,
        revision=settings.revision,
        part=settings.part,
        kind=settings.kind,
        heads=settings.heads,
        tokenizer=settings.tokenizer,
        mask=settings.mask,
        block=settings.block,
        length=settings.length,
    )
    return write_run(found, settings)


def write_run(found: PublicModel, settings: ImportSettings) -> Path:
    """A run of one checkpoint, at step 0."""
    weights = dict(found.weights())
    rest = found.left_over()
    manifest = make_manifest(
        stage=found.found.kind,
        settings=settings,
        inputs={},
        extra={"model": found.spec.plain(), "origin": found.origin, "config": dict(found.config)},
    )
    with without_weights():
        net = found.spec.network()
    wrong = sorted(net.state_dict().keys() ^ weights.keys())
    assert not wrong, wrong
    parts = {"model": weights, **({REST: rest} if rest else {})}
    with whole(settings.out) as temp:
        found.tokenizer.save(temp / "tokenizer")
        Store(temp).save(0, parts, {"tokens": 0, "identity": {}}, manifest)
        write_json(temp / MANIFEST, {**manifest, "status": "finished"})
    told = f"{found.found.kind}, {terminal.short(parameters(net))} weights, {found.spec.source} source"
    terminal.made("import", told, settings.out, "sample", settings.out)
    return settings.out
