"""Small networks for tests: fresh ones, ones whose zero layers were filled, and a run folder made of one."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tsdfm.nn import DDiT, NetSettings, Shape
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.store.checkpoint import Store
from tsdfm.store.files import write_json
from tsdfm.tokens.tokenizer import ByteTokenizer

VOCAB = 13


def tiny_shape(**given: Any) -> Shape:
    return NetSettings(**{"width": 16, "depth": 2, "heads": 2, "cond": 8, "dropout": 0.0, **given}).shape()


def tiny_net(*, vocab: int = VOCAB, tokens: int | None = None, step_size: bool = False, **shape: Any) -> DDiT:
    """A fresh network; the same one every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return DDiT(tiny_shape(**shape), vocab=vocab, tokens=tokens or vocab + 1, step_size=step_size)


def stir(net: nn.Module, seed: int = 1, size: float = 0.3) -> nn.Module:
    """Move every weight, so that nothing starts at zero any more."""
    noise = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(torch.randn(weight.shape, generator=noise) * size)
    return net


def tiny_spec(**given: Any) -> VelocitySpec:
    """A network on bytes."""
    plain = VelocitySpec(
        shape=tiny_shape(),
        vocab=257,
        source="mask",
        schedule="poly:1",
        length=20,
        anchor=1,
        tokenizer=ByteTokenizer().fingerprint,
    )
    return dataclasses.replace(plain, **given)


def tiny_velocity(spec: VelocitySpec, dtype: torch.dtype = torch.float64) -> Velocity:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = spec.network()
    stir(net).to(dtype).eval()
    return Velocity(spec, net, spec.flow_source(), spec.flow_schedule())


def save_run(out: Path, spec: VelocitySpec, steps: tuple[int, ...] = (1,), ema: bool = True) -> dict[int, DDiT]:
    """A run folder as the engine leaves it: plain weights stirred by seed `step`, averaged ones by seed 100 + step."""
    manifest = {"stage": "teacher", "model": spec.plain()}
    nets = {}
    for step in steps:
        plain, averaged = (stir(spec.network(), seed, size=1.0) for seed in (step, 100 + step))
        parts = {"model": plain.state_dict(), **({"ema": averaged.state_dict()} if ema else {})}
        Store(out, keep=10).save(step, parts, {"best": None}, manifest)
        nets[step], nets[100 + step] = plain, averaged
    write_json(out / "manifest.json", manifest)
    ByteTokenizer().save(out / "tokenizer")
    return nets
