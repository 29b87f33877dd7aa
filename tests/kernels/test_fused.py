"""Losses fused with the head against the plain ones with whole logits and autograd, in float64."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tsdfm.flow import Mask, Uniform
from tsdfm.flow.loss import bracket
from tsdfm.kernels import fused
from tsdfm.kernels.fused import CrossEntropy, Divergence, GeneralisedKL, Objective, ScoreEntropy, Target, fused_loss
from tsdfm.kernels.rows import Ratios

N, D, V = 23, 6, 9
SHARES = (1 / 6, 1 / 3, 1 / 3, 1 / 6)


def made(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def head_of(seed: int, bias: bool = True) -> nn.Linear:
    head = nn.Linear(D, V, bias=bias).double()
    with torch.no_grad():
        head.weight.copy_(made(V, D, seed=seed))
        if bias:
            head.bias.copy_(made(V, seed=seed + 1))
    return head


def tokens(limit: int, seed: int) -> Tensor:
    return torch.randint(0, limit, (N,), generator=torch.Generator().manual_seed(seed))


def target_and_p(average: str) -> tuple[Target, Tensor]:
    """A target, and its probabilities [N, V] from whole logits of four stages."""
    teacher, stages = head_of(70), [made(N, D, seed=80 + s) for s in range(4)]
    weight, bias = teacher.weight.detach(), teacher.bias.detach()
    logits = [F.linear(stage, weight, bias) for stage in stages]
    if average == "logits":
        mean = sum(share * stage for share, stage in zip(SHARES, stages, strict=True))
        p = sum(share * l for share, l in zip(SHARES, logits, strict=True)).softmax(-1)  # type: ignore[union-attr]
        return Target([mean], (1.0,), weight, bias), p
    p = sum(share * l.softmax(-1) for share, l in zip(SHARES, logits, strict=True))
    return Target(stages, SHARES, weight, bias), p


def kl(a: Tensor, b: Tensor) -> Tensor:
    return (a * (a.log() - b.log())).sum(-1)


def cases() -> dict[str, tuple[Objective, object]]:
    """Each objective and the plain loss [N] of whole logits."""
    x_1, x_uniform, x_mask = tokens(V, 1), tokens(V, 2), tokens(V + 1, 3)
    x_uniform[:8], x_mask[:4] = x_1[:8], V  # some have arrived, some are masked for sure
    out: dict[str, tuple[Objective, object]] = {
        "cross-entropy": (CrossEntropy(x_1), lambda l: F.cross_entropy(l, x_1, reduction="none")),
        "gkl uniform": (GeneralisedKL(x_1, x_uniform), lambda l: bracket(l, x_1, x_uniform, Uniform(V))),
        "gkl mask": (GeneralisedKL(x_1, x_mask), lambda l: bracket(l, x_1, x_mask, Mask(V))),
    }
    for name, x_t, low in (("mask", torch.full((N,), V), 0.0), ("uniform", x_uniform, 0.7)):
        out[f"score {name}"] = score_case(x_1, x_t, low)
    for average, reverse in itertools.product(("logits", "probabilities"), (False, True)):
        target, p = target_and_p(average)

        def plain(l: Tensor, p: Tensor = p, reverse: bool = reverse) -> Tensor:
            q = l.softmax(-1)
            return kl(q, p) if reverse else kl(p, q)

        out[f"{'reverse' if reverse else 'forward'} {average}"] = (Divergence(target, reverse), plain)
    return out


def score_case(x_1: Tensor, x_t: Tensor, low: float) -> tuple[Objective, object]:
    """Σ_{v≠x_t} s − r log s + r(log r − 1), log s = logits − shift, r = high at x_1 and low elsewhere."""
    shift, high = made(N, seed=6), made(N, seed=7).abs() + 0.5
    r = torch.full((N, V), low, dtype=torch.float64).scatter(1, x_1[:, None], high[:, None])
    counts = torch.arange(V) != x_t[:, None]

    def plain(l: Tensor) -> Tensor:
        log_s = l - shift[:, None]
        return ((log_s.exp() - r * log_s + torch.special.xlogy(r, r) - r) * counts).sum(-1)

    return ScoreEntropy(Ratios(x_1, x_t, shift, torch.full_like(shift, low), high)), plain


@pytest.mark.parametrize("name", list(cases()))
@pytest.mark.parametrize("chunk", [1, 5, N])
@pytest.mark.parametrize("bias", [True, False])
def test_value_and_gradients(name: str, chunk: int, bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(fused.ROOM, "cpu", chunk * V)
    objective, plain = cases()[name]
    scale = made(N, seed=5).abs()
    found = []
    for kind in ("fused", "plain"):
        hidden, head = made(N, D, seed=9).requires_grad_(), head_of(20, bias)
        loss = (
            fused_loss(hidden, head, objective, scale) if kind == "fused" else (plain(head(hidden)) * scale).sum()  # type: ignore[operator]
        )
        (3.0 * loss).backward()
        grads = [hidden.grad, head.weight.grad, *([head.bias.grad] if bias else [])]
        found.append([loss.detach(), *grads])
    for mine, theirs in zip(*found, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-11, atol=1e-12)


def test_hidden_average_is_logit_average() -> None:
    target, p = target_and_p("logits")
    torch.testing.assert_close(target.log_p(slice(None)).exp(), p, rtol=1e-12, atol=1e-14)


def test_averages_differ_and_the_geometric_one_is_sharper() -> None:
    """What `average` is about: the mean of logits has less entropy than the mean of probabilities."""
    (one, geometric), (several, arithmetic) = target_and_p("logits"), target_and_p("probabilities")
    torch.testing.assert_close(several.log_p(slice(None)).exp(), arithmetic, rtol=1e-12, atol=1e-14)
    entropy = lambda p: -(p * p.log()).sum(-1).mean()  # noqa: E731
    assert entropy(geometric) < entropy(arithmetic)
    assert len(one.hidden) == 1


def test_without_gradients_none_are_made() -> None:
    hidden, head = made(N, D, seed=9).requires_grad_(), head_of(20)
    with torch.no_grad():
        loss = fused_loss(hidden, head, CrossEntropy(tokens(V, 1)), torch.ones(N))
    assert not loss.requires_grad
    asked = []

    def objective(logits: Tensor, part: slice, gradient: bool) -> tuple[Tensor, None]:
        asked.append(gradient)
        return logits[:, 0], None

    with torch.no_grad():
        fused_loss(hidden, head, objective, torch.ones(N))
    assert asked == [False]


@pytest.mark.parametrize("name", ["forward logits", "reverse probabilities", "gkl mask"])
def test_bf16_products_with_a_float32_softmax(name: str) -> None:
    """Under autocast: float32 gradients, near the float64 ones by what bf16 products cost."""
    objective, plain = cases()[name]
    hidden, head = made(N, D, seed=9).float().requires_grad_(), head_of(20).float()
    with torch.autocast("cpu", torch.bfloat16):
        loss = fused_loss(hidden, head, objective, torch.ones(N) / N)
    loss.backward()
    assert (loss.dtype, hidden.grad.dtype, head.weight.grad.dtype) == (torch.float32,) * 3  # type: ignore[union-attr]
    exact_hidden, exact_head = made(N, D, seed=9).requires_grad_(), head_of(20)
    exact = plain(exact_head(exact_hidden)).mean()  # type: ignore[operator]
    exact.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.03)
    gap = (head.weight.grad.double() - exact_head.weight.grad).norm() / exact_head.weight.grad.norm()  # type: ignore[union-attr]
    assert 0 < gap < 0.05


def test_gradients_are_given_once() -> None:
    """They are scaled in their own place: asked for again, they would be wrong."""
    torch.manual_seed(0)
    head, hidden = torch.nn.Linear(4, 7), torch.randn(3, 4, requires_grad=True)
    loss = fused_loss(hidden, head, CrossEntropy(torch.tensor([0, 3, 6])), torch.ones(3))
    (2.0 * loss).backward(retain_graph=True)
    assert hidden.grad is not None
    wanted = hidden.grad.clone()
    again = hidden.detach().clone().requires_grad_()
    (2.0 * torch.nn.functional.cross_entropy(head(again), torch.tensor([0, 3, 6]), reduction="sum")).backward()
    torch.testing.assert_close(wanted, again.grad)
    with pytest.raises(RuntimeError, match="once only"):
        loss.backward()


@pytest.mark.parametrize(
    ("count", "columns"), [(0, 10), (1, 50_304), (4096, 50_304), (8192, 50_304), (65_000, 8192), (9, 1 << 28)]
)
def test_fast_chunks_cover_all_positions_and_fit(count: int, columns: int) -> None:
    found = list(fused.fast_chunks(count, columns))
    assert [i for part in found for i in range(count)[part]] == list(range(count))
    sizes = [part.stop - part.start for part in found]
    assert all(size * columns <= fused.FAST_ROOM or size == 1 for size in sizes)
    assert all(size % 128 == 0 for size in sizes[:-1]) or columns > fused.FAST_ROOM // 128
    assert len(found) <= -(-count // max(1, fused.FAST_ROOM // columns)) + 1
