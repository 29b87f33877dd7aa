"""Random checkpoints in the layouts of public ones, written as those files are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tsdfm.tokens.bpe import GPT2_END, PairTokenizer, train_bpe

TOKENS, D, C, BLOCKS, HEADS, LENGTH = 300, 32, 16, 2, 2, 12
BPE: PairTokenizer = train_bpe(["Mia has three red balls. She meets Tom in the garden and gives him one."] * 20, TOKENS)
TOKENS = BPE.vocab_size
SIZES = {"hidden_dim": D, "cond_dim": C, "n_blocks": BLOCKS, "n_heads": HEADS}
FLAT = {"vocab_size": TOKENS + 1, "model_length": LENGTH, **SIZES, "dropout": 0.1}
NESTED = {
    "hidden_size": D,
    "cond_dim": C,
    "n_blocks": BLOCKS,
    "n_heads": HEADS,
    "length": LENGTH,
    "scale_by_sigma": True,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "mdlm": {**FLAT, "time_conditioning": False},
    "duo": {**FLAT, "causal": False},
    "sdtt": {"parameterization": {"name": "sdtt"}, "model": {**NESTED}},
    "sedd": {"tokens": TOKENS, "graph": {"type": "absorb"}, "noise": {"type": "loglinear"}, "model": NESTED},
    "dfm": {},
    "fs-dfm": {},
}
PREFIX = {"mdlm": "backbone.", "duo": "backbone.", "sdtt": "backbone."}


def public_state(kind: str, rows: int, seed: int = 0) -> dict[str, Tensor]:
    """The tensors of a public file, by the names and shapes that its code has."""
    noise = torch.Generator().manual_seed(seed)
    shapes: dict[str, tuple[int, ...]] = {}

    def linear(name: str, out: int, size: int) -> None:
        shapes.update({f"{name}.weight": (out, size), f"{name}.bias": (out,)})

    apple = kind in ("dfm", "fs-dfm")
    shapes["vocab_embed.weight" if apple else "vocab_embed.embedding"] = (rows, D)
    times = ["time_embedding" if apple else "sigma_map", *(["dt_embedding"] if kind == "fs-dfm" else [])]
    for time in times:
        linear(f"{time}.mlp.0", C, 256)
        linear(f"{time}.mlp.2", C, C)
    if kind == "fs-dfm":
        linear("time_condition_fuser", 2 * C, 2 * C)
        linear("output_layer.condition_fuser", C, 2 * C)
    for i in range(BLOCKS):
        block = f"blocks.{i}"
        shapes |= {f"{block}.norm1.weight": (D,), f"{block}.norm2.weight": (D,), f"{block}.attn_out.weight": (D, D)}
        shapes |= (
            {f"{block}.{w}.weight": (D, D) for w in ("qw", "kw", "vw")}
            if apple
            else {f"{block}.attn_qkv.weight": (3 * D, D)}
        )
        linear(f"{block}.mlp.0", 4 * D, D)
        linear(f"{block}.mlp.2", D, 4 * D)
        linear(f"{block}.adaLN_modulation", 6 * D, C)
        if kind == "fs-dfm":
            linear(f"{block}.condition_fuser", C, 2 * C)
    shapes["output_layer.norm_final.weight"] = (D,)
    linear("output_layer.adaLN_modulation", 2 * D, C)
    linear("output_layer.linear", rows, D)
    state = {name: torch.randn(shape, generator=noise) * 0.2 for name, shape in shapes.items()}
    head = D // HEADS
    state["rotary_emb.inv_freq"] = 1.0 / 10_000 ** (torch.arange(0, head, 2).float() / head)
    return {f"{PREFIX.get(kind, '')}{name}": tensor for name, tensor in state.items()}


def rows_of(kind: str) -> int:
    return TOKENS if kind in ("dfm", "fs-dfm") else TOKENS + 1


def write_tokenizer(folder: Path) -> None:
    ids = {GPT2_END if i == BPE.end_of_text else token: i for i, token in enumerate(BPE.vocab)}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *(f"{a} {b}" for a, b in BPE.merges), ""]))


def write_public(kind: str, folder: Path, seed: int = 0) -> Path:
    """A folder as the hub would give it, or Apple's torch file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_tokenizer(folder)
    state = public_state(kind, rows_of(kind), seed)
    if kind == "dfm":
        torch.save({"model": state, "optimizer": {"step": 3}, "step": 7}, folder / "checkpoint.pth")
    elif kind == "fs-dfm":
        other = public_state("dfm", rows_of(kind), seed + 1)
        torch.save({"student_model": state, "teacher_model": other, "step": 7}, folder / "checkpoint.pth")
    else:
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(CONFIGS[kind]))
    return folder
