"""`tsdfm export`: a model as a folder for the hub, in the layout its public relatives have where there is one.

FOLDER/model.safetensors     the weights, under the public names
       config.json           what a public loader reads, and under `tsdfm` all that ours does
       vocab.json merges.txt the tokenizer, in GPT-2's files
       README.md             the card
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.nn.velocity import VelocitySpec, run_folder, spec_in
from tsdfm.public.card import card, check_licence, figures_of
from tsdfm.public.layouts import DEFAULTS, KINDS, LOG_LINEAR, OWN, ROTARY, SETS, rotary_rates, theirs_from
from tsdfm.public.model import HUB_NAME
from tsdfm.public.run import REST
from tsdfm.public.settings import ExportSettings
from tsdfm.public.tensors import licence_of
from tsdfm.store.bundle import FoundWeights, find_member, find_weights, member_at
from tsdfm.store.checkpoint import read_state, read_tensors, write_tensors
from tsdfm.store.files import read_text, write_json, write_text
from tsdfm.store.folder import must_be_new, whole
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.bpe import GPT2_END, PairTokenizer
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer

WRAPPER = {"mdlm": "backbone.", "sdtt": "backbone.", "duo": "backbone."}  # what their public loaders expect


def run(settings: ExportSettings) -> Path:
    """Write the folder, and upload it where that is asked for."""
    must_be_new(settings.to, "--to")
    if settings.push:
        check_name(settings.push)
    check_licence(settings.licence)
    found = find_weights(settings.model, "student", which="ema", choose="newest")
    spec = spec_in(found.manifest, found.place)
    tokenizer = load_tokenizer(tokenizer_folder(settings.model, found))
    manifest, words = known_of(found.place)
    given = {
        "name": settings.push,
        "licence": settings.licence,
        "said": read_text(settings.card) if settings.card is not None else "",
        "figures": figures_of(run_folder(found.place), found.sha256),
    }
    words |= {name: word for name, word in given.items() if word}
    told = write_folder(settings.to, spec, tokenizer, found.weights(), manifest, left_over(found.place), **words)
    if settings.push:
        push(settings.to, settings.push)
    terminal.made("export", told, settings.to, "import", settings.to, "--out", "runs/imported")
    return settings.to


def known_of(place: Path) -> tuple[dict[str, Any], dict[str, str]]:
    """The manifest of weights that lie at `place`, and what their bundle says of them, in words of `card.card`."""
    member = member_at(place)
    if member is None:
        return read_manifest(place), {}
    bundle = member.bundle
    said = f"This is the {member.role} of {bundle.folder.resolve().name}, whose card says:\n\n{bundle.words}"
    own = {"defaults": bundle.defaults} if member.role == "student" else {}
    words = {"said": said if bundle.words else "", "licence": licence_of(bundle.manifest) or ""}
    return {**member.about, **own}, words


def write_folder(
    folder: Path,
    spec: VelocitySpec,
    tokenizer: Tokenizer,
    weights: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    rest: Mapping[str, Tensor],
    **words: str,
) -> str:
    """Write a model of `weights` under our names, and what an import kept beside them; says in words what it wrote.

    `words` are those of `card.card`.
    """
    kind, tensors = public_tensors(spec, weights, manifest, rest)
    with whole(folder) as temp:
        written = write_tensors(temp / "model.safetensors", tensors)
        write_json(temp / "config.json", config_of(kind, spec, manifest))
        write_tokenizer(tokenizer, temp)
        write_text(temp / "README.md", card(kind, spec, manifest, written["sha256"], **words))
    return f"{len(tensors)} tensors in the layout of {kind}, {terminal.short(written['bytes'])} bytes"


def tokenizer_folder(model: Path, found: FoundWeights) -> Path:
    """Where a model's tokenizer lies."""
    member = find_member(model, "student")
    return (member.bundle.folder if member else run_folder(found.place)) / "tokenizer"


def public_tensors(
    spec: VelocitySpec, weights: Mapping[str, Tensor], manifest: Mapping[str, Any], rest: Mapping[str, Tensor]
) -> tuple[str, dict[str, Tensor]]:
    """The layout of a model, and its tensors under that layout's names."""
    kind = kind_for(spec, manifest)
    if kind == OWN:
        return kind, dict(weights)
    rest = rest or invented(spec, weights)
    table = SETS[KINDS[kind].names].table(spec.shape.depth, spec.step_size)
    if origin := (manifest.get("origin") or {}).get("names"):
        table = {ours: tuple(theirs) for ours, theirs in origin.items()}
    else:
        wrapper = WRAPPER.get(kind, "")
        table = {ours: tuple(f"{wrapper}{name}" for name in theirs) for ours, theirs in table.items()}
        rest = {f"{wrapper}{name}": tensor for name, tensor in rest.items()}
    return kind, theirs_from(table, weights, rest)


def kind_for(spec: VelocitySpec, manifest: Mapping[str, Any]) -> str:
    """The public layout that a model was imported in, or whose models are told and answer the same; or our own."""
    if (came_as := (manifest.get("origin") or {}).get("layout")) in KINDS:
        return str(came_as)
    mine = {name: getattr(spec, name) for name in ("time", "clock", "logits", "step_size")}
    fitting = [
        kind
        for kind, known in KINDS.items()
        if {name: known.words()[name] for name in mine} == mine and known.mask in (None, spec.source == "mask")
    ]
    if spec.shape.positions or spec.decoder is not None or spec.latent or not fitting:
        return OWN
    return spec.method if spec.method in fitting else fitting[0]


def left_over(place: Path) -> dict[str, Tensor]:
    """What an import kept beside the weights of a checkpoint."""
    path = place / f"{REST}.safetensors"
    known = path.is_file() and path.name in read_state(place)["files"]
    return read_tensors(path, "import the model again") if known else {}


def invented(spec: VelocitySpec, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What public files have and our network has not: a head row of zeros for [MASK], and the rotary rates."""
    rest: dict[str, Tensor] = {}
    if spec.source == "mask":
        rest = {
            "output_layer.linear.weight": weights["head.weight"].new_zeros(1, spec.shape.width),
            "output_layer.linear.bias": weights["head.bias"].new_zeros(1),
        }
    return {**rest, ROTARY: rotary_rates(spec.shape)}


def config_of(kind: str, spec: VelocitySpec, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The config: as it was imported, or in the form of the public ones, with our spec beside it."""
    own: dict[str, Any] = {OWN: spec.plain(), **({DEFAULTS: told} if (told := manifest.get("defaults")) else {})}
    if isinstance(manifest.get("config"), dict) and manifest["config"]:
        return {**manifest["config"], **own}
    shape, rows = spec.shape, spec.flow_source().tokens
    sizes = {"hidden_dim": shape.width, "n_blocks": shape.depth, "n_heads": shape.heads, "cond_dim": shape.cond}
    flat: dict[str, Any] = {"vocab_size": rows, "model_length": spec.length, **sizes, "dropout": shape.dropout}
    match kind:
        case "sedd":
            inner = {
                "hidden_size": shape.width,
                **sizes,
                "length": spec.length,
                "dropout": shape.dropout,
                "scale_by_sigma": spec.logits != "score",
            }
            inner.pop("hidden_dim")
            graph = {"type": "absorb" if spec.source == "mask" else "uniform"}
            flat = {"tokens": spec.vocab, "graph": graph, "noise": {"type": LOG_LINEAR}, "model": inner}
        case "sdtt":
            flat = {"parameterization": {"name": "sdtt"}, **flat}
        case "mdlm":
            flat |= {"model_type": kind, "time_conditioning": False}
        case "duo":
            flat |= {"model_type": kind, "causal": False}
    return {**flat, **own}


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """GPT-2's two files of a byte-level BPE; another kind of tokenizer as our own file."""
    if not isinstance(tokenizer, PairTokenizer):
        tokenizer.save(folder)
        return
    ids = {token: i for i, token in enumerate(tokenizer.vocab)}
    spelled = {GPT2_END if i == tokenizer.end_of_text else token: i for token, i in ids.items()}
    write_text(folder / "vocab.json", json.dumps(spelled, ensure_ascii=False))
    write_text(folder / "merges.txt", "\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in tokenizer.merges), ""]))


def check_name(name: str) -> None:
    """Refuse what is no name of the hub."""
    if not HUB_NAME.fullmatch(name):
        raise UserError(f"{name!r} is no hub name: give OWNER/NAME")


def push(folder: Path, name: str, *, kept: bool = True) -> None:
    """Upload a folder to the hub, as OWNER/NAME. `kept`: the folder stays, and an error says so."""
    from tsdfm.store.hub import out_of_reach

    check_name(name)
    where = f"{folder} is written, but not uploaded" if kept else f"nothing was uploaded to {name}"
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise UserError(f"{where}: uploading needs the hub client: pip install 'tsdfm[hub]'") from None
    if reason := out_of_reach():
        raise UserError(f"{where}: {reason}")
    try:
        api = HfApi()
        api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
    except Exception as problem:  # permission, name, network: the client has a class for each
        first = (str(problem).strip().splitlines() or [""])[0][:160]
        raise UserError(f"{where} ({type(problem).__name__}: {first})") from problem
