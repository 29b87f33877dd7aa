"""A random checkpoint in the public layout of DFM or FS-DFM, and what it takes to load it: `python -m benchmarks
checkpoint --out FOLDER`.

The file is written by one process and loaded by another, which says how much memory it had at its peak, its mapped
pages among it, against the bytes of the weights. `--preset 1b3` is 5.3 GB, as the public files have it.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from benchmarks.harness import random_spec, say
from tsdfm.nn.ddit import parameters
from tsdfm.public.export import write_tokenizer
from tsdfm.public.layouts import ROTARY, SETS, rotary_rates
from tsdfm.settings import option, required
from tsdfm.tokens.bpe import PairTokenizer, byte_symbols, gpt2

VOCAB = 50257
FILE = "checkpoint.pth"
GIB = 2.0**30


@dataclass(frozen=True, kw_only=True)
class CheckpointBenchmark:
    """What to write and load."""

    out: Path = required("folder for the file; one that is there already is loaded")
    preset: str = option("1b3", "size of the network")
    student: bool = option(False, "with step-size conditioning, as FS-DFM has it")
    tokenizer: Path | None = option(None, "folder with GPT-2's files; none makes a tokenizer of as many pairs of bytes")
    device: str = option("auto", "auto, cpu or cuda: where it is loaded to")
    only: Literal["both", "write", "load"] = option("both", "one half alone")


def run(settings: CheckpointBenchmark) -> None:
    """Write and load, each in a process of its own."""
    if settings.only == "write":
        return write(settings)
    if settings.only == "load":
        return load(settings)
    for half in ("write", "load"):
        if half == "load" or not (settings.out / FILE).is_file():
            words = [
                f"--{name}={value}" for name, value in vars(settings).items() if name != "only" and value is not None
            ]
            subprocess.run([sys.executable, "-m", "benchmarks", "checkpoint", *words, f"--only={half}"], check=True)
    return None


def write(settings: CheckpointBenchmark) -> None:
    """A torch file with one model in it, under the public names, and the tokenizer's files beside it."""
    settings.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(gpt2(settings.tokenizer) if settings.tokenizer else pairs_of_bytes(), settings.out)
    spec = random_spec(settings.preset, VOCAB, 1024, step_size=settings.student)
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in spec.network().state_dict().items()}
    noise, state = torch.Generator().manual_seed(0), dict[str, torch.Tensor]()
    for ours, theirs in SETS["fs-dfm"].table(spec.shape.depth, settings.student).items():
        parts = torch.empty(shapes[ours]).normal_(std=0.02, generator=noise).chunk(len(theirs))
        state |= {name: part.clone() if len(parts) > 1 else part for name, part in zip(theirs, parts, strict=True)}
    state[ROTARY] = rotary_rates(spec.shape)
    part = settings.out / f"{FILE}.part"
    torch.save({"student_model" if settings.student else "model": state, "step": 0}, part)
    part.rename(settings.out / FILE)
    say(f"{settings.out / FILE}: {(settings.out / FILE).stat().st_size / 1e9:.2f} GB")


def load(settings: CheckpointBenchmark) -> None:
    """Load it, let it answer once, and say what that took."""
    from tsdfm.engine.distributed import pick_device
    from tsdfm.public.model import load_public

    device = pick_device(settings.device)
    tokens = torch.zeros(1, 16, dtype=torch.int64, device=device)
    before, begin = resident(), time.perf_counter()
    velocity, _, name = load_public(settings.out / FILE, device, tokenizer=settings.out)
    seconds = time.perf_counter() - begin
    velocity(tokens, *(torch.full((1,), 0.5, device=device) for _ in range(2)))
    count = parameters(velocity.net)
    weights, host = 4 * count / GIB, peak() - before
    say(f"{name}: {count:,} weights, {weights:.2f} GiB, loaded to {device} in {seconds:.1f} s")
    say(f"peak of the host's memory: {host:.2f} GiB, {host / weights:.2f} of the weights")
    if device.type == "cuda":
        used = torch.cuda.max_memory_allocated() / GIB
        say(f"peak of the device's memory: {used:.2f} GiB, {used / weights:.2f} of the weights")


def pairs_of_bytes() -> PairTokenizer:
    """A byte-level BPE of as many tokens as GPT-2's, whose merges are the pairs of bytes: nothing to download."""
    symbols = sorted(byte_symbols())
    merges = [(a, b) for a in symbols for b in symbols][: VOCAB - len(symbols) - 1]
    return PairTokenizer([*symbols, *(a + b for a, b in merges)], merges, VOCAB - 1, "pairs")


def resident() -> float:
    """GiB of this process's memory now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / GIB


def peak() -> float:
    """GiB of this process's memory at its peak."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2.0**20
