"""`tsdfm import`: a public checkpoint becomes one of our runs, which every other command takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.nn.layers import without_weights
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.public.causal import causal_folder, is_causal, start_for
from tsdfm.public.layouts import DEFAULTS
from tsdfm.public.model import read_public
from tsdfm.public.settings import ImportSettings, check_start
from tsdfm.settings import build
from tsdfm.store.bundle import find_member
from tsdfm.store.checkpoint import Store, has_checkpoint
from tsdfm.store.defaults import SampleDefaults
from tsdfm.store.files import write_json
from tsdfm.store.folder import must_be_new, whole
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.store.manifest import make_manifest
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer

REST = "left_over"  # the part of a checkpoint that only an export reads


def run(settings: ImportSettings) -> Path:
    """Read, recognise, check and write; returns the run folder."""
    must_be_new(settings.out, "--out")
    if find_member(settings.source, "student") is not None or has_checkpoint(settings.source):
        raise UserError(f"{settings.source} is a model of tsdfm already: every command takes it as it is")
    if settings.tokens is not None:
        return write_start(settings, settings.tokens)
    for word, usual in (("noise", "uniform"), ("grow", 1)):
        if getattr(settings, word) != usual:
            raise UserError(
                f"--{word} is for a causal model, which becomes the start of a flow model: give --tokens too"
            )
    if is_causal(Path(settings.source)) and not settings.kind:
        raise UserError(f"{settings.source} is a causal model: --tokens FOLDER makes it the start of a flow model")
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
    rest = found.left_over()
    parts = {"model": dict(found.weights()), **({REST: rest} if rest else {})}
    about = {"origin": found.origin, "config": dict(found.config)}
    if isinstance(told := found.config.get(DEFAULTS), dict):
        build(SampleDefaults, told, DEFAULTS)  # which refuses what could not be sampled by
        about["defaults"] = told
    write_run(settings, found.found.kind, found.spec, found.tokenizer, parts, about)
    told = f"{found.found.kind}, {weights_of(parts)} weights, {found.spec.source} source"
    asked = ["--prompt=How many?"] if found.spec.prompted else []  # it answers prompts, and none is known here
    terminal.made("import", told, settings.out, "sample", settings.out, *asked)
    return settings.out


def write_start(settings: ImportSettings, tokens: Path) -> Path:
    """A causal model as the start of a flow model on the rows of `tokens`."""
    check_start(settings)
    path = causal_folder(settings.source, settings.revision)
    spec, weights, origin = start_for(path, tokens, settings.noise, settings.grow)
    if not Path(settings.source).exists():
        origin |= {"source": settings.source, "revision": path.name}
    write_run(settings, "causal", spec, load_tokenizer(tokens), {"model": weights}, {"origin": origin}, tokens)
    told = f"the start of a flow model, {weights_of({'model': weights})} weights, {spec.source} source"
    then = ("teacher", "--tokens", tokens, "--init-from", settings.out, "--source", spec.source)
    terminal.made("import", told, settings.out, *then, "--out", settings.out.parent / "teacher")
    return settings.out


def weights_of(parts: dict[str, dict[str, Tensor]]) -> str:
    """How many weights a network has, in short."""
    return terminal.short(sum(tensor.numel() for tensor in parts["model"].values()))


def write_run(
    settings: ImportSettings,
    stage: str,
    spec: VelocitySpec,
    tokenizer: Tokenizer,
    parts: dict[str, dict[str, Tensor]],
    about: dict[str, Any],
    tokens: Path | None = None,
) -> None:
    """A run of one checkpoint, at step 0."""
    inputs = {} if tokens is None else {"tokens": tokens}
    manifest = make_manifest(stage=stage, settings=settings, inputs=inputs, extra={"model": spec.plain(), **about})
    with without_weights():
        net = spec.network()
    wrong = sorted(net.state_dict().keys() ^ parts["model"].keys())
    assert not wrong, wrong
    with whole(settings.out) as temp:
        tokenizer.save(temp / "tokenizer")
        Store(temp).save(0, parts, {"tokens": 0, "identity": {}}, manifest)
        write_json(temp / MANIFEST, {**manifest, "status": "finished"})
