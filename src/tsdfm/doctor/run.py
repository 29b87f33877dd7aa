"""`tsdfm doctor`: what is installed, what this machine can do, and what a recipe would need."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from tsdfm import __version__
from tsdfm.compass.network import EnergyNet
from tsdfm.compass.run import sizes
from tsdfm.compass.settings import CompassSettings
from tsdfm.doctor.settings import DoctorSettings
from tsdfm.engine.distributed import gpu_does_not_start
from tsdfm.errors import UserError
from tsdfm.nn import DDiT, Shape, flops_per_token, parameters
from tsdfm.nn.decoder import Decoder
from tsdfm.nn.decoder import flops_per_token as decoder_flops
from tsdfm.nn.layers import without_weights
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.pipeline.plan import Plan, make_plan
from tsdfm.pipeline.settings import PipelineSettings
from tsdfm.pipeline.stages import check_inputs
from tsdfm.public.causal import is_causal, sizes_in, start_spec
from tsdfm.recipes import read_recipe
from tsdfm.recipes.trainers import kind
from tsdfm.settings import build
from tsdfm.store.manifest import NAME as MANIFEST
from tsdfm.tokens.choose import given_tokenizer
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.settings import TokensSettings

NEEDED = ("torch", "numpy", "safetensors", "tokenizers", "rich")
EXTRAS = {
    "hub": "datasets",
    "parquet": "pyarrow",
    "zstd": "zstandard",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "serve": "fastapi",
    "judges": "transformers",
}


def run(settings: DoctorSettings) -> dict[str, dict[str, str]]:
    """Print the tables; returns their rows."""
    console = Console()
    wanted = None if settings.recipe is None else needs(settings.recipe)  # a wrong name is told before anything else
    found = {"machine": machine()}
    console.print(two_columns("This machine", found["machine"]))
    if wanted is not None:
        console.print(two_columns(f"Recipe {settings.recipe}", wanted))
        found["recipe"] = wanted
    return found


def two_columns(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def machine() -> dict[str, str]:
    """Versions, devices, precision, kernels."""
    rows = {"tsdfm": __version__, "python": platform.python_version()}
    rows |= {name: importlib.metadata.version(name) for name in NEEDED}
    missing = [extra for extra, module in EXTRAS.items() if importlib.util.find_spec(module) is None]
    rows["extras"] = ", ".join(extra for extra in EXTRAS if extra not in missing) or "none"
    if missing:
        rows["no extra"] = f"{', '.join(missing)}: pip install 'tsdfm[NAME]' brings one"
    rows["CPU"] = f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()}; bf16 instructions: {cpu_bf16()}"
    for index in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(index)
        bf16 = "yes" if torch.cuda.get_device_capability(index) >= (8, 0) else "no"
        rows[f"GPU {index}"] = f"{about.name}, {about.total_memory / 2**30:.0f} GiB, bf16 {bf16}"
    if not torch.cuda.is_available():
        rows["GPU"] = silence() if gpu_does_not_start() else "none that torch sees: training runs in float32 on the CPU"
    rows["compile"] = compiler()
    rows["attention"] = ", ".join(attention())
    rows["distributed"] = ", ".join(backends()) or "not in this build of torch"
    return rows


def silence() -> str:
    """Why a GPU that is there cannot be used."""
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        reason = "no reason given"
    except Exception as problem:
        reason = (str(problem).splitlines() or [""])[0]
    return f"there, but CUDA does not start ({reason}): mend that, or ask for device cpu"


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


def attention() -> list[str]:
    """The kernels scaled_dot_product_attention may choose from on a GPU."""
    cuda = torch.backends.cuda
    kinds = {"flash": cuda.flash_sdp_enabled, "memory-efficient": cuda.mem_efficient_sdp_enabled}
    kinds |= {"cuDNN": cuda.cudnn_sdp_enabled, "plain": cuda.math_sdp_enabled}
    return [name for name, enabled in kinds.items() if enabled()]  # type: ignore[no-untyped-call]


def backends() -> list[str]:
    """How processes could talk."""
    dist = torch.distributed
    if not dist.is_available():
        return []
    return [name for name, there in (("gloo", dist.is_gloo_available()), ("nccl", dist.is_nccl_available())) if there]


def needs(recipe: str) -> dict[str, str]:
    """Parameters, memory and work of the recipe's first teacher and compass that are trained, and what it lacks."""
    plan = make_plan(read_recipe(recipe), PipelineSettings(recipe=recipe).folder)
    trained = {kind(m.method): m.settings for m in reversed(plan.models) if m.trained}
    found, teacher, compass = missing(plan), trained.get("teacher"), trained.get("compass")
    if (rows := rows_of(plan, teacher)) is None:
        return found | {"network": "not reckoned: the tokens that it learns, or their tokenizer, are not there"}
    vocab, length = rows
    started = teacher is not None and teacher.init_from is not None and teacher.net.width is None
    start = start_of(plan, teacher.init_from, vocab, length) if teacher and started else None
    if teacher and started and start is None:
        found |= {
            "network": f"that of {teacher.init_from.name}, its start; |V| = {vocab}, length {length}",
            "tokens per step": f"{teacher.loop.batch * length:,}",
        }
    elif teacher:
        found |= teacher_needs(teacher, start, vocab, length)
    if compass and (rows := rows_of(plan, compass)) and not (started and start is None and compass.init == "teacher"):
        vocab, length = rows
        used = next((m.spec for m in plan.models if m.path == compass.teacher and m.spec is not None), None)
        spec = start if used is None else build(VelocitySpec, used, "model")
        found |= compass_needs(compass, spec, vocab + (plan.sources[0] == "mask"), length)
    return found


def missing(plan: Plan) -> dict[str, str]:
    """The first thing that a recipe reads from elsewhere and that is not there; no hub is asked."""
    if plan.starts and not Path(plan.starts[0].source).exists():
        return {"missing": f"start: source says {plan.starts[0].source}, which is not on this machine"}
    try:
        check_inputs(plan)
    except UserError as problem:
        return {"missing": str(problem)}
    return {}


def rows_of(plan: Plan, settings: Any) -> tuple[int, int] | None:
    """|V| and the length of the rows that a model learns: the recipe's own, or of tokens that must be there."""
    own = plan.out / "tokens"
    place = own if settings is None else settings.tokens
    if place == own:
        tokens = plan.tokens or TokensSettings(corpus=Path(), out=own)
        vocab = vocab_of(tokens)
        return None if vocab is None else (vocab, tokens.length)
    if not (place / MANIFEST).is_file():
        return None
    rows = TokenRows(place, "train")
    return rows.vocab_size, rows.length


def start_of(plan: Plan, place: Path, vocab: int, length: int) -> VelocitySpec | None:
    """What the causal model of the recipe's start at `place` becomes, if its folder is there."""
    start = next((each for each in plan.starts if each.out == place), None)
    if start is None or not is_causal(Path(start.source)):
        return None
    rows = {"vocab": vocab, "length": length, "source": start.noise, "anchor": 0, "tokenizer": ""}
    return start_spec(sizes_in(Path(start.source), start.grow), **rows)


def teacher_needs(teacher: Any, start: VelocitySpec | None, vocab: int, length: int) -> dict[str, str]:
    """Those of a teacher that is trained from fresh weights, or from a `start` of other sizes than its settings'."""
    loop, rows = teacher.loop, vocab + (teacher.source == "mask")
    shape = replace(start.shape, checkpoint=teacher.net.checkpoint) if start else teacher.net.shape()
    decoder = start.decoder if start else None
    make: Callable[..., nn.Module] = partial(Decoder, decoder) if decoder else partial(DDiT, shape)
    with without_weights():
        count, student = (parameters(make(vocab=vocab, tokens=rows, step_size=told)) for told in (False, True))
    flops = decoder_flops(decoder, vocab, length) if decoder else flops_per_token(shape, vocab, length)
    micro = loop.micro or loop.batch
    blocks = f"{shape.depth} blocks of width {shape.width}, {shape.heads} heads"
    return {
        "network": f"{blocks}, |V| = {vocab}, length {length}",
        "parameters": f"{count / 1e6:.1f}M; with step-size conditioning {student / 1e6:.1f}M",
        "tokens per step": f"{loop.batch * length:,}",
        "work per step": f"{3 * flops * loop.batch * length / 1e12:.2f} TFLOP",
        "memory, one device": f"{memory(shape, count, vocab, micro * length) / 2**30:.1f} GiB at {micro} rows"
        + TAKEN * (decoder is not None),
    }


TAKEN = ", activations as of a DDiT"  # a decoder's were not measured


def vocab_of(tokens: TokensSettings) -> int | None:
    """Different tokens: those of the tokenizer that is given, none if it is not there, or as many as are asked for."""
    if tokens.tokenizer_files is not None:
        with contextlib.suppress(UserError):
            given = given_tokenizer(tokens)
            return given.vocab_size if given is not None else None
        return None
    return {"gpt2": 50257, "byte": 257, "bpe": tokens.vocab_size}[tokens.tokenizer]


def compass_needs(compass: CompassSettings, teacher: VelocitySpec | None, rows: int, length: int) -> dict[str, str]:
    """The same of a compass; `teacher` is what is known of one that is there already, or starts from what is there."""
    shape, decoder = (compass.net.shape(), None) if teacher is None else sizes(compass, teacher)
    states = compass.negatives + 2
    with without_weights():
        count = parameters(EnergyNet(shape, tokens=rows, decoder=decoder))
    micro = compass.loop.micro or compass.loop.batch
    room = memory(shape, count, 0, micro * states * length) / 2**30
    return {
        "compass": f"{shape.depth} blocks of width {shape.width}, {count / 1e6:.1f}M",
        "compass, tokens per step": f"{compass.loop.batch * states * length:,} ({states} states a positive)",
        "compass, memory": f"{room:.1f} GiB at {micro} positives" + TAKEN * (decoder is not None),
    }


def memory(shape: Shape, count: int, vocab: int, tokens: int) -> float:
    """Bytes of a training step, estimated: 20 a parameter (weight, gradient, two moments, average) and activations.

    46 bytes a unit of width and block, and 8 a logit, were read off compiled bf16 steps on one H200 (docs/log.md);
    recomputing activations leaves the blocks' inputs only. A decoder is taken for a DDiT.
    """
    per_block = 4 if shape.checkpoint else 46
    return 20.0 * count + tokens * (per_block * shape.depth * shape.width + 8.0 * vocab)
