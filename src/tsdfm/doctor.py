"""`tsdfm doctor`: what is installed, what this machine can do, and what a recipe would need."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
from dataclasses import dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tsdfm import __version__
from tsdfm.nn import DDiT, NetSettings, Shape, flops_per_token, parameters
from tsdfm.recipes import load_recipe
from tsdfm.settings import build, option

NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "rich")
EXTRAS = {"hub": "datasets", "parquet": "pyarrow", "zstd": "zstandard", "tensorboard": "tensorboard"}


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """What to look at."""

    recipe: str | None = option(None, "also say what this recipe needs")


def run(settings: DoctorSettings) -> None:
    """Print the tables."""
    console = Console()
    console.print(two_columns("This machine", machine()))
    if settings.recipe is not None:
        console.print(two_columns(f"Recipe {settings.recipe}", needs(settings.recipe)))


def two_columns(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def machine() -> dict[str, str]:
    """Versions, devices, precision, kernels."""
    rows = {"tsdfm": __version__, "python": platform.python_version()}
    rows |= {name: importlib.metadata.version(name) for name in NEEDED}
    extras = {extra: importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()}
    rows["extras"] = ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in extras.items())
    rows["CPU"] = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}; bf16 instructions: {cpu_bf16()}"
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        bf16 = "yes" if torch.cuda.get_device_capability(index) >= (8, 0) else "no"
        rows[f"GPU {index}"] = f"{about.name}, {about.total_memory / 2**30:.0f} GiB, bf16 {bf16}"
    if not torch.cuda.is_available():
        rows["GPU"] = "none that torch sees: training runs in float32 on the CPU"
    rows["compile"] = compiler()
    rows["distributed"] = ", ".join(backends()) or "not in this build of torch"
    return rows


def cpu_bf16() -> str:
    """Does the CPU multiply bf16 natively?"""
    check = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return "unknown" if check is None else "yes" if check() else "no"


def compiler() -> str:
    """What torch.compile and our kernels would use here."""
    triton = importlib.util.find_spec("triton") is not None
    if torch.cuda.is_available():
        return f"Triton {importlib.metadata.version('triton')}" if triton else "no Triton: leave loop.compile off"
    return "C++ on the CPU" + (", Triton by its interpreter only" if triton else "; no Triton")


def backends() -> list[str]:
    """How processes could talk."""
    dist = torch.distributed
    if not dist.is_available():
        return []
    return [name for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available())) if there]


def needs(recipe: str) -> dict[str, str]:
    """Parameters, memory and work of the recipe's teacher."""
    plain = load_recipe(recipe)
    teacher: dict[str, Any] = plain.get("teacher", {})
    tokens: dict[str, Any] = plain.get("tokens", {})
    shape = build(NetSettings, teacher.get("net", {}), "teacher.net").shape()
    vocab = 50257 if tokens.get("tokenizer") == "gpt2" else int(tokens.get("vocab_size", 8192))
    length, loop = int(tokens.get("length", 256)), teacher.get("loop", {})
    batch = int(loop.get("batch", 32))
    micro = int(loop.get("micro", batch))
    rows = vocab + (teacher.get("source") == "mask")
    with torch.device("meta"):
        count = parameters(DDiT(shape, vocab=vocab, tokens=rows))
        student = parameters(DDiT(shape, vocab=vocab, tokens=rows, step_size=True))
    work = 3 * flops_per_token(shape, vocab, length) * batch * length
    return {
        "network": f"{shape.depth} blocks of width {shape.width}, {shape.heads} heads, |V| = {vocab}, length {length}",
        "parameters": f"{count / 1e6:.1f}M; with step-size conditioning {student / 1e6:.1f}M",
        "tokens per step": f"{batch * length:,}",
        "work per step": f"{work / 1e12:.2f} TFLOP",
        "memory, one device": f"{memory(shape, count, vocab, micro * length) / 2**30:.1f} GiB at {micro} rows",
    }


def memory(shape: Shape, count: int, vocab: int, tokens: int) -> float:
    """Bytes of a training step, estimated: 20 a parameter (weight, gradient, two moments, average) and activations.

    46 bytes a unit of width and block, and 8 a logit, were read off compiled bf16 steps on one H200 (docs/log.md);
    recomputing activations leaves the blocks' inputs only.
    """
    per_block = 4 if shape.checkpoint else 46
    return 20.0 * count + tokens * (per_block * shape.depth * shape.width + 8.0 * vocab)
