"""The student's hot path with kernels against the same without: seeded results agree within the precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tsdfm import kernels
from tsdfm.distil.chain import ESTIMATORS, target_of
from tsdfm.distil.midpoint import policy_from
from tsdfm.distil.settings import NavigateSettings
from tsdfm.distil.stats import Stats
from tsdfm.flow import CumulativeJump, Polynomial, RowNoise, source_from
from tsdfm.kernels import fused
from tsdfm.kernels.fused import CrossEntropy, Divergence, GeneralisedKL, Objective, Target, fused_loss
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import VelocitySpec

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
ROWS, LENGTH, VOCAB = 4, 4, 11
SHAPE = Shape(width=16, depth=1, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)


def both_ways(run: Callable[[], Any]) -> tuple[Any, Any]:
    with kernels.forced():
        mine = run()
    with kernels.without():
        return mine, run()


class PairEnergy:
    """A closed-form energy."""

    def __init__(self, tokens: int) -> None:
        made = torch.Generator().manual_seed(0)
        self.two = torch.randn(tokens, tokens, generator=made, dtype=torch.float64).to(DEVICE)

    def energy(self, x: Tensor) -> Tensor:
        return self.two[x[:, :-1], x[:, 1:]].sum(-1)


def state(source: str) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(3)
    x_t = torch.randint(0, VOCAB + (source == "mask"), (ROWS, LENGTH), generator=made).to(DEVICE)
    return x_t, 2 * torch.randn(ROWS, LENGTH, VOCAB, generator=made).to(DEVICE)


@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("name", ["blind", "sequence", "token", "sequence-to-token"])
def test_policies(source: str, name: str) -> None:
    x_t, logits = state(source)
    jump = CumulativeJump(Polynomial(1.0), source_from(source, VOCAB))
    t = torch.tensor([0.1, 0.3, 0.5, 0.75], dtype=torch.float64)
    h = torch.tensor([0.3, 0.5, 0.25, 0.25], dtype=torch.float64)

    def run() -> tuple[Tensor, dict[str, float]]:
        stats = Stats(3)
        policy = policy_from(name, jump, settings=NavigateSettings(k=3), compass=PairEnergy(VOCAB + 1), stats=stats)
        noise = RowNoise(5, torch.arange(ROWS, device=DEVICE))
        moved = [policy(x_t, logits, t, h, noise) for _ in range(2)]
        return torch.stack(moved), stats.summary() if name != "blind" else {}

    (mine, counted), (theirs, expected) = both_ways(run)
    assert torch.equal(mine, theirs)
    assert not torch.equal(mine[0], x_t)
    assert counted == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("refine", ["all", "jumped"])
@pytest.mark.parametrize("entropy", ["batch", "vocab"])
def test_settings_of_navigation(refine: str, entropy: str) -> None:
    x_t, logits = state("uniform")
    jump = CumulativeJump(Polynomial(1.0), source_from("uniform", VOCAB))
    settings = NavigateSettings(k=2, refine=refine, entropy=entropy, tau=0.0)  # type: ignore[arg-type]
    t, h = (torch.full((ROWS,), value, dtype=torch.float64) for value in (0.4, 0.4))

    def run() -> Tensor:
        policy = policy_from("sequence-to-token", jump, settings=settings, compass=PairEnergy(VOCAB))
        return policy(x_t, logits, t, h, RowNoise(6, torch.arange(ROWS, device=DEVICE)))

    mine, theirs = both_ways(run)
    assert torch.equal(mine, theirs)


def objectives(n: int, d: int) -> dict[str, Objective]:
    made = torch.Generator().manual_seed(8)
    tokens = torch.randint(0, VOCAB, (2, n), generator=made).to(DEVICE)
    tokens[1, :3] = tokens[0, :3]
    weight = torch.randn(VOCAB, d, generator=made).to(DEVICE)
    hidden = torch.randn(n, d, generator=made).to(DEVICE)
    from tsdfm.kernels.head import padded

    target = Target([hidden], (1.0,), weight, None, padded(weight, None, torch.float32))
    return {
        "forward": Divergence(target),
        "reverse": Divergence(target, reverse=True),
        "cross-entropy": CrossEntropy(tokens[0]),
        "gkl": GeneralisedKL(tokens[0], tokens[1]),
    }


@pytest.mark.parametrize("name", ["forward", "reverse", "cross-entropy", "gkl"])
@pytest.mark.parametrize("bias", [True, False])
def test_fused_loss(name: str, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "FAST_ROOM", 5 * VOCAB)
    n, d = 13, 8
    torch.manual_seed(1)
    head = nn.Linear(d, VOCAB, bias=bias).to(DEVICE)
    start, scale = torch.randn(n, d).to(DEVICE), torch.rand(n, dtype=torch.float64).to(DEVICE)

    def run() -> list[Tensor]:
        head.zero_grad()
        hidden = start.clone().requires_grad_()
        loss = fused_loss(hidden, head, objectives(n, d)[name], scale)
        (2.0 * loss).backward()
        grads = [hidden.grad, *(p.grad for p in head.parameters())]
        return [loss.detach(), *(g.clone() for g in grads if g is not None)]

    mine, theirs = both_ways(run)
    assert len(mine) == 3 + bias
    for a, b in zip(mine, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


def matching(source: str) -> Tensor:
    """A matched batch of three rows: its loss, the auxiliary's, the draws and the gradient of the student's head."""
    from tsdfm.compass.model import Compass
    from tsdfm.compass.network import spec_from
    from tsdfm.distil.matching.auxiliary import Auxiliary
    from tsdfm.distil.matching.forms import Forms
    from tsdfm.distil.matching.match import Match, Matched
    from tsdfm.distil.matching.settings import AuxiliarySettings
    from tsdfm.distil.matching.tilt import Tilt
    from tsdfm.distil.matching.width import Width
    from tsdfm.engine.distributed import Processes
    from tsdfm.engine.task import Context
    from tsdfm.methods.idlm import IDLMSettings
    from tsdfm.nn.velocity import Velocity

    spec = VelocitySpec(
        shape=SHAPE, vocab=VOCAB, source=source, schedule="poly:1", length=LENGTH, anchor=1, tokenizer="abc"
    )  # fmt: skip
    nets, energy = list[nn.Module](), spec_from(spec, SHAPE, "nce")
    for seed, made in enumerate((spec, spec, energy)):
        torch.manual_seed(seed)
        nets.append(made.network().to(DEVICE))
        for p in nets[-1].parameters():
            nn.init.normal_(p, std=0.4)
    teacher = Velocity(spec, nets[0], spec.flow_source(), spec.flow_schedule())
    settings, world = IDLMSettings(tokens="a", init_from="b", out="c"), Processes(device=DEVICE)  # type: ignore[arg-type]
    auxiliary = Auxiliary(AuxiliarySettings(teacher=0.5), settings, spec, teacher)
    auxiliary.bind(Context(ema=None, world=world))
    auxiliary.split(settings.loop.batch)
    width = Width(0.5, VOCAB)
    width.bind(world)
    width.means[0, :3] *= 2
    forms = Forms(0.5, spec.flow_schedule(), spec.flow_source())
    match = Match(spec, teacher, auxiliary, forms, 0.8, source == "mask", 0.3, width)
    match.tilt = Tilt(0.5, Compass(energy, nets[2].requires_grad_(False)))
    x_t, drawn = state(source)[0][:3], list[Tensor]()
    t, h = (torch.full((3,), value, dtype=torch.float64, device=DEVICE) for value in (0.25, 0.5))
    rows = Matched(x_t.clamp(max=VOCAB - 1), x_t, t, h, 1, RowNoise(5, torch.arange(3, device=DEVICE)))

    def then(hidden: Tensor, head: nn.Linear) -> Tensor:
        objective, weights = match(rows, hidden[:, 1:].flatten(0, 1), head, 0, drawn.append)
        return fused_loss(hidden[:, 1:].flatten(0, 1), head, objective, weights)

    loss = nets[1](x_t, t.float(), then=then)
    loss.backward()
    found = [loss.detach()[None], match.found["aux"][None], drawn[0].flatten(), nets[1].head.weight.grad.flatten()]
    return torch.cat([x.float() for x in found])


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_matching(source: str) -> None:
    mine, theirs = both_ways(lambda: matching(source))
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_target_with_rows_to_spare() -> None:
    """A batch kept at one size gives the wanted rows' target as without the rest, with kernels and without."""
    spec = VelocitySpec(
        shape=SHAPE, vocab=VOCAB, source="uniform", schedule="poly:1", length=LENGTH, anchor=1, tokenizer="abc",
        step_size=True,
    )  # fmt: skip
    torch.manual_seed(0)
    semi = spec.network().to(DEVICE)
    for p in semi.parameters():
        nn.init.normal_(p, std=0.4)
    x_t, _ = state("uniform")
    t, h = torch.full((ROWS,), 0.25, dtype=torch.float64), torch.full((ROWS,), 0.5, dtype=torch.float64)
    jump = CumulativeJump(Polynomial(1.0), source_from("uniform", VOCAB))

    def run(rows: int, whole: int) -> Tensor:
        noise = RowNoise(5, torch.arange(rows, device=DEVICE))
        policy = policy_from("sequence-to-token", jump, settings=NavigateSettings(k=2), compass=PairEnergy(VOCAB))
        target = target_of(
            semi, x_t[:whole], t[:whole], h[:whole], policy, noise, ESTIMATORS["rk4"], anchor=1, rows=rows
        )
        return target.log_p(slice(None))

    for rows, whole in ((3, 3), (3, 4)):
        mine, theirs = both_ways(lambda rows=rows, whole=whole: run(rows, whole))
        assert mine.shape == (3 * (LENGTH - 1), VOCAB)
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(theirs, run(3, 3), rtol=1e-4, atol=1e-4)
