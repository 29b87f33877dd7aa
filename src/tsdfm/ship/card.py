"""The card of a bundle: what its maker wrote, and the facts that its manifest knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tsdfm.store.bundle import FACTS, UNSAID

NOTED = (
    "name",
    "policy",
    "target",
    "objective",
    "loss",
    "divergence",
    "navigate.tau",
    "navigate.k",
    "navigate.selector",
    "navigate.blocks",
    "loop.batch",
    "loop.seed",
    "optim.rule",
    "optim.lr",
    "optim.weight_decay",
    "optim.ema",
)
STORED = {
    "coded": (
        "Matrices of 4,096 numbers or more are stored as whole numbers of steps in Huffman's code, the rest as "
        "float32. A row's step is {coarse:.2%} of its root mean square, or 1/127 of its largest number if that is "
        "more. The student and the compass are stored as differences from the teacher where that is shorter."
    ),
    "int8": "Matrices of 4,096 numbers or more are stored as int8 with one float32 scale a row, the rest as float32.",
    "bf16": "Matrices of 4,096 numbers or more are stored as bf16, the rest as float32.",
}


def card_text(manifest: Mapping[str, Any], given: str | None) -> str:
    """The whole card in Markdown."""
    name = manifest["name"]
    said = given.strip() if given else f"# {name}\n\n{UNSAID}"
    facts = [
        f"{FACTS} from the manifests of the runs, {manifest['created'][:10]}, tsdfm {manifest['versions']['tsdfm']}.",
        networks(manifest["members"]),
        flow(manifest),
        "### How the weights are stored",
        f"{STORED[manifest['weights']].format(coarse=manifest['coarse'])} They are float32 again once loaded.",
        changes(manifest["members"]),
        "### Training",
        training(manifest["members"]),
        "Every setting is in `manifest.json`.",
        "### Hashes",
        hashes(manifest["members"]),
    ]
    return "\n\n".join([said, *facts]) + "\n"


def networks(members: Mapping[str, Any]) -> str:
    """What there is, and how large."""
    rows = []
    for role, about in members.items():
        shape = (about.get("model") or about["compass"])["shape"]
        size = f"{shape['depth']} blocks of width {shape['width']}, {shape['heads']} heads"
        rows.append([role, about["stage"], f"{about['parameters']:,}", size, f"{about['bytes'] / 1e6:.2f} MB"])
    return table(["model", "made by", "weights", "network", "file"], rows)


def flow(manifest: Mapping[str, Any]) -> str:
    """The flow, the rows, and how the student is sampled."""
    spec, own = manifest["members"]["student"]["model"], manifest["defaults"]
    by = "" if own["jump"] == "auto" else f", by the jump `{own['jump']}`"
    return (
        f"Source `{spec['source']}`, schedule `{spec['schedule']}`, rows of {spec['length']} tokens, a vocabulary of "
        f"{spec['vocab']:,}. Unless told otherwise, `tsdfm sample` writes {own['n']} texts in {own['steps']} network "
        f"passes each at temperature {own['temperature']:g}{by}."
    )


def changes(members: Mapping[str, Any]) -> str:
    """What packing changed, measured when it was done."""
    rows = []
    for role, about in members.items():
        found = about["change"]
        if "kl_nats" in found:
            told = f"KL {found['kl_nats']:.2g} nats a token; the likeliest token stays in {found['same_likeliest']:.2%}"
        else:
            told = (
                f"picks the same of 5 candidates in {found['same_pick']:.1%}; energies move by "
                f"{found['difference']:.2g} where candidates differ by {found['spread']:.2g}"
            )
        rows.append([role, f"{about['weights_error']:.2%}", told])
    effect = "effect, on states of 2 texts in 8 passes of the student it was packed with"
    head = ["model", "error of the weights (‖w' − w‖ / ‖w‖)", effect]
    return table(head, rows)


def training(members: Mapping[str, Any]) -> str:
    """The main settings of each run."""
    rows = []
    for role, about in members.items():
        tokens = "" if about["tokens"] is None else f"{about['tokens']:,}"
        told = ", ".join(f"{key} {value}" for key in NOTED if (value := at(about["settings"], key)) is not None)
        start = ", of ".join(filter(None, [about["parent"], about.get("descent", {}).get("source")]))
        rows.append([role, about["run"], start, f"{about['step']:,}", tokens, told])
    return table(["model", "run", "started from", "steps", "tokens seen in this run", "settings"], rows)


def hashes(members: Mapping[str, Any]) -> str:
    """sha256 of each file, and of the averaged weights it was packed from."""
    rows = [
        [f"{role}.safetensors", f"`{about['sha256']}`", f"`{about['packed_from']}`"] for role, about in members.items()
    ]
    return table(["file", "sha256", "packed from weights of sha256"], rows)


def at(settings: Any, key: str) -> Any:
    """A setting by its dotted name, or none."""
    for part in key.split("."):
        if not isinstance(settings, Mapping):
            return None
        settings = settings.get(part)
    return settings


def table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)
