"""Heads that are padded, losses without logits, and a compass that holds bf16: the same answers as without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor, nn

from training import DFM
from tsdfm import kernels
from tsdfm.compass.model import Compass, lean
from tsdfm.compass.network import spec_from
from tsdfm.kernels.head import quick_logits
from tsdfm.methods.dfm import DFMSettings
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.tokens.loader import Batch

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SHAPE = Shape(width=16, depth=1, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)
SPEC = VelocitySpec(shape=SHAPE, vocab=11, source="uniform", schedule="poly:1", length=6, anchor=1, tokenizer="abc")


@torch.no_grad()
def test_quick_logits_follow_the_weights() -> None:
    torch.manual_seed(0)
    head, hidden = nn.Linear(8, 11).to(DEVICE), torch.randn(2, 3, 8).to(DEVICE)
    with kernels.forced("head"):
        for _ in range(3):
            torch.testing.assert_close(quick_logits(hidden, head), head(hidden))
            head.weight += 0.5
            head.bias -= 1.0
        assert quick_logits(hidden, head).stride(-2) == 64


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("loss", ["cross-entropy", "generalised-kl"])
def test_the_teachers_loss_without_logits(source: str, loss: Literal["cross-entropy", "generalised-kl"]) -> None:
    plan = DFMSettings(tokens=Path(), out=Path(), loss=loss)
    task = DFM.task(plan, replace(SPEC, source=source), None)
    model = task.model.to(DEVICE)
    torch.manual_seed(1)
    for p in model.parameters():
        nn.init.normal_(p, std=0.3)
    tokens = torch.randint(11, (4, 6), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    batch = Batch(tokens, torch.arange(4, device=DEVICE))

    def run() -> list[Tensor]:
        model.zero_grad()
        made, _ = task.loss(model, batch, 0)
        made.backward()  # type: ignore[no-untyped-call]
        return [made.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    with kernels.forced("rows"):
        mine = run()
    with kernels.without():
        theirs = run()
    assert len(mine) == len(theirs) > 10
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_lean_compass_is_the_same_compass() -> None:
    torch.manual_seed(3)
    about = spec_from(SPEC, SHAPE, "nce")
    net = about.network().to(DEVICE).eval().requires_grad_(False)
    for p in net.parameters():
        nn.init.normal_(p, std=0.3)
    whole = Compass(about, net, bf16=True)
    small, tokens = lean(whole), torch.randint(11, (5, 6), generator=torch.Generator().manual_seed(4)).to(DEVICE)
    assert torch.equal(small.energy(tokens), whole.energy(tokens))
    assert {p.dtype for p in small.net.blocks.parameters()} == {torch.bfloat16, torch.float32}
    assert {p.dtype for p in net.parameters()} == {torch.float32}
