"""The card of an exported model, in the hub's format: a metadata block, what its maker says, and what its run knows."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tsdfm.errors import UserError
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.public.tensors import WORD, licence_of
from tsdfm.store.files import read_any_json, read_json
from tsdfm.store.manifest import NAME as MANIFEST

UNSAID = "Its maker has written nothing about its licence, what it is for, and its limits."
UNMEASURED = "No figures of these weights lie beside the run: `tsdfm report measure` makes them."
LIMITS = (
    "It goes on with what it has read, true or not, and has no guard against harmful text. Texts have at most {length} "
    "tokens at once. Fewer passes than it was measured with cost quality."
)


def card(
    kind: str,
    spec: VelocitySpec,
    manifest: Mapping[str, Any],
    sha256: str,
    *,
    name: str = "",
    licence: str = "",
    said: str = "",
    figures: str = "",
) -> str:
    """The whole card in Markdown, for a model of this `name` on the hub.

    `said` are its maker's words, `figures` a table of what was measured. Where its maker has spoken, the run says
    nothing of data and figures that it does not know.
    """
    origin, descent = manifest.get("origin") or {}, manifest.get("descent") or {}
    title = spec.method if WORD.fullmatch(spec.method) else kind
    licence = licence or licence_of(origin) or licence_of(descent) or "other"
    steps = (manifest.get("defaults") or {}).get("steps")
    data = data_of(manifest)
    block = ["---", f"license: {licence}", "library_name: tsdfm"]
    block += ["pipeline_tag: text-generation", "tags:", "- discrete-diffusion", f"- {title}", "---"]
    made = "Trained with tsdfm." if manifest else "Uploaded from memory, without a run that says where it is from."
    if origin or descent:
        word, public = ("Imported from", origin) if origin else ("Trained with tsdfm, beginning with", descent)
        layout = f" (layout {public['layout']})" if public.get("layout") else ""
        made = f"{word} {public['source']}{layout}."
    shape, rows = spec.shape, f"rows of {spec.length} tokens, {spec.vocab:,} tokens"
    facts = [
        said.strip() or f"# {title}, {spec.source} source\n\n{UNSAID}",
        "## Use",
        f'```python\nimport tsdfm\n\nmodel = tsdfm.from_pretrained("{name or "OWNER/NAME"}")\n'
        f"print(model.sample(n=2, steps={steps if isinstance(steps, int) else 16}).texts)\n```",
        "## Facts",
        made,
        f"{shape.depth} blocks of width {shape.width}, {rows}, {spec.source} source, written by `{spec.usual_jump()}`.",
        f"Weights in the layout of {kind}, sha256 `{sha256}`.",
        *(["## Data", data or "Its run names no tokens."] if data or not said else []),
        *(["## Figures", figures or UNMEASURED] if figures or not said else []),
        "## Limits",
        LIMITS.format(length=spec.length),
    ]
    return "\n".join(block) + "\n\n" + "\n\n".join(facts) + "\n"


def check_licence(word: str) -> None:
    """Refuse what could not stand in a metadata block."""
    if word and not WORD.fullmatch(word):
        raise UserError(f"--licence is one word, as in apache-2.0, not {word!r:.60}")


def data_of(manifest: Mapping[str, Any]) -> str:
    """What the model learned from, as far as the folders that its run names are still there; empty if it names none."""
    tokens = (manifest.get("inputs") or {}).get("tokens")
    if not isinstance(tokens, Mapping):
        return ""
    told = f"Tokens of sha256 `{tokens.get('sha256')}`."
    with contextlib.suppress(UserError, KeyError, TypeError):
        corpus = read_json(Path(tokens["path"]) / MANIFEST)["inputs"]["corpus"]["path"]
        for source in read_json(Path(corpus) / MANIFEST)["sources"]:
            seen = source["train"]
            told += f" {source['source']}: {seen['documents']:,} documents, {seen['characters']:,} characters."
    return told


def figures_of(run: Path, sha256: str) -> str:
    """A table of what a report beside the run says of weights with this hash; empty where there is none."""
    path = run.parent / "report" / "metrics.json"
    found = read_any_json(path) if path.is_file() else []
    lines = ["| passes | judge | perplexity | entropy, nats | texts |", "| --- | --- | --- | --- | --- |"]
    for row in found if isinstance(found, list) else []:
        if not isinstance(row, Mapping) or not row.get("checkpoint") or not sha256.startswith(row["checkpoint"]):
            continue
        entropy, texts = row.get("entropy_nats"), row.get("samples")
        for judge, scores in (row.get("judges") or {}).items():
            if isinstance(scores.get("ppl"), int | float) and isinstance(entropy, int | float):
                low, high = scores.get("ppl_interval") or (scores["ppl"], scores["ppl"])
                around = f"{scores['ppl']:.4g} ({low:.4g} to {high:.4g})"
                lines.append(f"| {row.get('nfe') or row.get('steps')} | {judge} | {around} | {entropy:.2f} | {texts} |")
    return "\n".join(lines) if len(lines) > 2 else ""
