import copy
import itertools
import math

import pytest
import torch
from torch import Tensor, nn
from toy_training import Net

from tsdfm.engine.ema import Ema
from tsdfm.engine.optim import Optimiser, decays, lr_at
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError


def test_warm_up_then_cosine_to_the_floor() -> None:
    optim = OptimSettings(lr=2.0, warmup=4, floor=0.1)
    rates = [lr_at(step, 13, optim) for step in range(13)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates[8] == pytest.approx(2.0 * 0.55)  # halfway between the peak and the floor
    assert rates[12] == pytest.approx(0.2)
    assert all(a > b for a, b in itertools.pairwise(rates[4:]))
    assert lr_at(10**6, 13, optim) == pytest.approx(0.2)
    assert lr_at(0, 1, OptimSettings(lr=2.0, warmup=0)) == 2.0


def test_the_rate_may_hold_its_peak_until_the_end_comes() -> None:
    optim = OptimSettings(lr=2.0, warmup=4, floor=0.1, decay=4)
    rates = [lr_at(step, 13, optim) for step in range(13)]
    assert rates[3:9] == [2.0] * 6
    assert rates[10] == pytest.approx(2.0 * 0.55)
    assert rates[12] == pytest.approx(0.2)
    assert [lr_at(step, 10**6, optim) for step in range(9)] == rates[:9]  # a run that is ended later begins the same
    cosine = OptimSettings(lr=2.0, warmup=4, floor=0.1)
    long = OptimSettings(lr=2.0, warmup=4, floor=0.1, decay=100)
    assert [lr_at(step, 13, long) for step in range(13)] == [lr_at(step, 13, cosine) for step in range(13)]


def test_matrices_decay_and_vectors_and_embeddings_do_not() -> None:
    model = Net()
    model.embed.weight.requires_grad_(False)
    pulled = decays(model)
    assert "embed.weight" not in pulled
    model.embed.weight.requires_grad_(True)
    pulled = decays(model)
    assert {n for n, d in pulled.items() if d} == {"blocks.0.inner.weight", "blocks.1.inner.weight", "head.weight"}


def grads(model: nn.Module, step: int) -> None:
    g = torch.Generator().manual_seed(step)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=g)


def reference_step(params: dict[str, Tensor], moments: dict[str, tuple[Tensor, Tensor]], n: int, s: OptimSettings,
                   found: dict[str, Tensor], pulled: dict[str, bool], lr: float) -> None:  # fmt: skip
    """AdamW with clipping, as the paper writes it, in float64."""
    norm = math.sqrt(sum(float(g.double().square().sum()) for g in found.values()))
    scale = min(1.0, s.clip / (norm + 1e-6))
    for name, p in params.items():
        g = found[name].double() * scale
        m, v = moments[name]
        m.mul_(s.beta1).add_(g * (1 - s.beta1))
        v.mul_(s.beta2).add_(g * g * (1 - s.beta2))
        p.mul_(1 - lr * (s.weight_decay if pulled[name] else 0))
        p.sub_(lr * (m / (1 - s.beta1**n)) / ((v / (1 - s.beta2**n)).sqrt() + s.eps))


def test_it_is_adamw_and_skips_a_gradient_that_is_not_finite() -> None:
    model, settings = Net(), OptimSettings(lr=0.1, weight_decay=0.3)
    optimiser = Optimiser(model, settings)
    params = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in params.items()}
    pulled, n = decays(model), 0
    for step in range(6):
        grads(model, step)
        if step in (2, 3):
            model.head.weight.grad[0, 0] = float("nan") if step == 2 else float("inf")  # type: ignore[index]
            before = copy.deepcopy((model.state_dict(), optimiser.state()))
            _, bad = optimiser.step(0.1)
            assert bool(bad)
            for old, new in zip(before, (model.state_dict(), optimiser.state()), strict=True):
                assert all(torch.equal(old[name], new[name]) for name in old)
            continue
        n += 1
        found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        norm, bad = optimiser.step(0.1)
        assert not bool(bad)
        assert float(norm) == pytest.approx(math.sqrt(sum(float(g.square().sum()) for g in found.values())), rel=1e-5)
        reference_step(params, moments, n, settings, found, pulled, 0.1)
    for name, p in model.named_parameters():
        assert p.grad is None
        torch.testing.assert_close(p.detach().double(), params[name], rtol=1e-4, atol=1e-6)


def test_a_task_may_slow_it_down_start_it_anew_or_give_it_nothing() -> None:
    slow, plain = Net(), Net()
    plain.load_state_dict(slow.state_dict())
    ours, theirs = (Optimiser(model, OptimSettings()) for model in (slow, plain))
    ours.pace = 0.5
    for model, optimiser, lr in ((slow, ours, 0.2), (plain, theirs, 0.1)):
        grads(model, 0)
        optimiser.step(lr)
    assert all(torch.equal(a, b) for a, b in zip(slow.parameters(), plain.parameters(), strict=True))
    before = copy.deepcopy((slow.state_dict(), ours.state()))
    norm, bad = ours.step(0.1)  # no gradient: nothing moves
    assert (float(norm), bool(bad)) == (0.0, False)
    for old, new in zip(before, (slow.state_dict(), ours.state()), strict=True):
        assert all(torch.equal(old[name], new[name]) for name in old)
    ours.restart()
    assert not any(x.any() for x in ours.state().values())


def test_the_average_follows_its_closed_form() -> None:
    model = nn.Linear(1, 1, bias=False)
    model.register_buffer("count", torch.zeros((), dtype=torch.int64))
    nn.init.constant_(model.weight, 1.0)
    ema, expected = Ema(model, 0.5), 1.0
    for n in range(20):
        with torch.no_grad():
            model.weight.fill_(float(n))
        model.count += 1  # type: ignore[operator]
        d = min(0.5, (1 + n) / (10 + n))
        assert ema.decay_at(n) == d
        expected = d * expected + (1 - d) * n
        ema.update(n)
    assert float(ema.module.weight) == pytest.approx(expected, rel=1e-6)  # type: ignore[arg-type]
    assert int(ema.module.count) == 20  # type: ignore[arg-type]
    assert not any(p.requires_grad for p in ema.module.parameters())
    assert Ema(model, 0.5, warmup=False).decay_at(0) == 0.5


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [
        (OptimSettings, "lr", 0.0),
        (OptimSettings, "lr", math.nan),
        (OptimSettings, "ema", 1.0),
        (OptimSettings, "floor", 2.0),
        (OptimSettings, "clip", -1.0),
        (LoopSettings, "steps", 0),
        (LoopSettings, "micro", 0),
        (LoopSettings, "keep", 0),
        (LoopSettings, "eval_every", -1),
    ],
)
def test_impossible_settings_are_refused(cls: type, field: str, value: float) -> None:
    with pytest.raises(UserError, match=field):
        cls(**{field: value})
