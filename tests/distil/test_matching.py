"""Distribution matching: its laws, its objective against float64, its fixed point, its running texts and its watch."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from student_parts import SHAPE, spec_of, stirred
from torch import Tensor, nn

from tsdfm.compass.model import Compass
from tsdfm.compass.network import spec_from
from tsdfm.distil.answers import answer, own_answer
from tsdfm.distil.matching.auxiliary import Auxiliary
from tsdfm.distil.matching.forms import EARLY, FIRST, REST, SPAN, Forms
from tsdfm.distil.matching.match import Match, Matched
from tsdfm.distil.matching.running import Running
from tsdfm.distil.matching.settings import AuxiliarySettings, WatchSettings
from tsdfm.distil.matching.tilt import Tilt
from tsdfm.distil.matching.times import CHAIN, DATA, FLOOR, OWN, MatchedTimes, Passes
from tsdfm.distil.matching.watch import Watch, histogram_bits
from tsdfm.distil.matching.width import Width
from tsdfm.distil.meaning import own_tokens
from tsdfm.distil.times import Levels
from tsdfm.engine.distributed import Processes
from tsdfm.engine.optim import Optimiser
from tsdfm.engine.task import Context
from tsdfm.errors import UserError
from tsdfm.flow import Mask, Polynomial, RowNoise, Uniform
from tsdfm.flow.late import LateJump
from tsdfm.flow.logits import posterior_from_others
from tsdfm.kernels.fused import fused_loss
from tsdfm.kernels.head import padded
from tsdfm.kernels.reward import reward
from tsdfm.methods.idlm import IDLMSettings
from tsdfm.nn.velocity import Velocity, VelocitySpec

WORLD = Processes(device=torch.device("cpu"))
LINE = Polynomial(1.0)


# ── how x is noised again ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fresh", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("source", [Uniform(4), Mask(4)])
def test_the_law_of_z_b(fresh: float, source: Any) -> None:
    """Chi-square of z_b − given t_b, x and z_a − over 4 tokens and [MASK]; t_b lies where the form says."""
    rows = 20_000
    x, z_a = torch.full((rows, 1), 2), torch.full((rows, 1), 1 if source.mask is None else source.mask)
    t_a, h = torch.full((rows,), 0.25, dtype=torch.float64), torch.full((rows,), 0.5, dtype=torch.float64)
    found = Forms(fresh, LINE, source)(x, z_a, t_a, h, RowNoise(3, torch.arange(rows)))
    anew = found.share[:, 0] == LINE.kappa(found.t_b)  # else it is 1 − (1−κ_b)/(1−κ_a), another number
    assert abs(float(anew.double().mean()) - fresh) < 0.01
    assert bool((((found.t_b >= FIRST) & (found.t_b < FIRST + SPAN)) | ~anew).all())
    place = (found.t_b - t_a) / h
    assert bool((anew | (place == 1) | ((place >= EARLY) & (place < EARLY + REST + 1e-12))).all())
    whole = (place[~anew] == 1).double().mean() if fresh < 1 else torch.tensor(0.5)
    assert abs(float(whole) - 0.5) < 0.01
    wanted, counts = torch.zeros(5, dtype=torch.float64), torch.bincount(found.z_b[:, 0], minlength=5).double()
    wanted[2] = found.share.sum()
    for token in range(4):
        wanted[token] += ((1 - found.share[:, 0]) * anew * source.probability(torch.tensor(token))).sum()
    wanted[4] += ((1 - found.share[:, 0]) * anew).sum() if source.mask is not None else 0.0
    wanted[int(z_a[0])] += ((1 - found.share[:, 0]) * ~anew).sum()
    assert not counts[wanted == 0].any()
    chi = ((counts - wanted) ** 2 / wanted)[wanted > 0].sum()
    assert float(chi) < 18.5  # 1 in 1 000 of four degrees of freedom


def test_a_step_that_is_the_last_never_ends_at_one() -> None:
    half = torch.full((500,), 0.5, dtype=torch.float64)
    x = torch.zeros(500, 3, dtype=torch.int64)
    found = Forms(0.0, LINE, Uniform(4))(x, x, half, half, RowNoise(1, torch.arange(500)))
    assert float(found.t_b.max()) < 1.0


@pytest.mark.parametrize("since", [0.0, 0.5])
def test_rows_before_a_time_are_of_the_posterior_form(since: float) -> None:
    t_a = torch.tensor([0.0, 0.25, 0.5, 0.75], dtype=torch.float64).repeat(100)
    x, h = torch.zeros(400, 3, dtype=torch.int64), torch.full((400,), 0.25, dtype=torch.float64)
    found = Forms(1.0, LINE, Uniform(4), since)(x, x + 1, t_a, h, RowNoise(1, torch.arange(400)))
    early = t_a < since
    wanted = torch.where(early, 1.0 - LINE.survival(t_a, found.t_b), LINE.kappa(found.t_b))
    assert torch.equal(found.share[:, 0], wanted)
    assert bool(((found.t_b > t_a) & (found.t_b <= t_a + h))[early].all())
    assert bool((found.z_b[early] <= 1).all())  # x, or z_a


@pytest.mark.parametrize("fresh", [1.0, 0.0])
@pytest.mark.parametrize("source", [Uniform(3), Mask(3)])
def test_the_law_of_x_given_z_b(fresh: float, source: Any) -> None:
    """z_b with probability `shown`, else g: Bayes' rule over every x and z_b of a small vocabulary."""
    g = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    z_a = 1 if source.mask is None else source.mask
    t = torch.full((1,), 0.25, dtype=torch.float64)
    z = torch.full((1, 1), z_a)
    made = Forms(fresh, LINE, source)(z.clamp(max=2), z, t, t, RowNoise(0, torch.arange(1)))
    share = float(made.share)
    for z_b in range(source.tokens):
        other = float(source.probability(torch.tensor(z_b))) if fresh else float(z_b == z_a)
        joint = torch.tensor([p * (share * (v == z_b) + (1 - share) * other) for v, p in enumerate(g.tolist())])
        if not joint.sum() > 0:
            continue
        p = g[z_b] if z_b < 3 else torch.zeros((), dtype=torch.float64)
        again = replace(made, z_b=torch.tensor([[z_b]]), other=torch.tensor([[other]], dtype=torch.float64))
        shown = float(again.shown(p.view(1, 1)))
        mixed = (1 - shown) * g
        if z_b < 3:
            mixed[z_b] += shown
        torch.testing.assert_close(mixed.float(), (joint / joint.sum()).float(), rtol=1e-6, atol=1e-7)


# ── the fixed point, in closed form ─────────────────────────────────────────────────────────────────────────────────


def closed_gradient(logits: Tensor, p: Tensor, source: Any) -> tuple[Tensor, float]:
    """The expected gradient by the logits of a text of one token, with the best auxiliary, and Σ |reward|.

    Every t_b and z_b of the fresh form is gone through: q(z_b) = κ g(z_b) + (1−κ) p_0(z_b).
    """
    g, total, size = logits.softmax(-1), torch.zeros_like(logits), 0.0
    noise = source.probability(torch.arange(source.tokens))

    def given(law: Tensor, z: int, kappa: float) -> Tensor:
        shows = torch.nn.functional.one_hot(torch.tensor(z), source.tokens)[: source.vocab]
        joint = law * (kappa * shows + (1 - kappa) * noise[z])
        return joint / joint.sum()

    for kappa in (0.1, 0.5, 0.8):
        for z in [source.mask] if source.mask is not None else range(source.vocab):
            weight = (kappa * g[z] if z < source.vocab else 0.0) + (1 - kappa) * noise[z]
            if source.mask is not None:
                weight = weight / (1 - kappa)  # the bound's
            row = logits.clone()[None]
            pair = (given(law, z, kappa).log()[None] for law in (g, p))
            loss, _ = reward(row, *pair, torch.ones(1, dtype=torch.float64), source.vocab, 50.0)
            total += weight * row[0]
            size += abs(float(loss))
    return total / 3, size


@pytest.mark.parametrize("source", [Uniform(3), Mask(3)])
def test_where_the_laws_agree_nothing_pulls_and_elsewhere_they_are_brought_together(source: Any) -> None:
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
    gradient, size = closed_gradient(p.log(), p, source)
    assert size < 1e-15
    assert not (gradient.abs() > 1e-16).any()
    logits = torch.tensor([0.1, 0.2, 0.9], dtype=torch.float64)
    if source.mask is not None:  # there the gradient is that of KL(student ‖ teacher)
        leaf = logits.clone().requires_grad_()
        (leaf.softmax(-1) * (leaf.log_softmax(-1) - p.log())).sum().backward()
        torch.testing.assert_close(closed_gradient(logits, p, source)[0], leaf.grad, rtol=1e-12, atol=1e-14)
    for _ in range(250):
        logits = logits - 2.0 * closed_gradient(logits, p, source)[0]
    torch.testing.assert_close(logits.softmax(-1), p, rtol=1e-5, atol=1e-5)


# ── the objective against whole logits in float64 ───────────────────────────────────────────────────────────────────


def velocity_of(spec: VelocitySpec, seed: int) -> Velocity:
    return Velocity(spec, stirred(spec, seed).requires_grad_(False), spec.flow_source(), spec.flow_schedule())


def settings_of(**given: Any) -> IDLMSettings:
    return IDLMSettings(tokens=Path("a"), init_from=Path("b"), out=Path("c"), **given)


KINDS = {"uniform": {}, "mask": {"logits": "subs", "time": False}, "others": {"logits": "others", "clock": "sigma"}}


def scene(kind: str, fresh: float, **own: Any) -> tuple[VelocitySpec, Match, Matched, nn.Module]:
    """A match of stirred float64 networks and six rows of which two have texts of their own."""
    source = "mask" if kind == "mask" else "uniform"
    spec = spec_of(source, step_size=False, **KINDS[kind])
    teacher = velocity_of(spec, 1)
    auxiliary = Auxiliary(AuxiliarySettings(**own), settings_of(), spec, teacher)
    auxiliary.net.load_state_dict(stirred(spec, 2).state_dict())
    auxiliary.net.double()
    auxiliary.bind(Context(ema=None, world=WORLD))
    auxiliary.split(settings_of().loop.batch)
    match = Match(spec, teacher, auxiliary, Forms(fresh, LINE, spec.flow_source()), 0.8, source == "mask", 0.3, None)
    made = torch.Generator().manual_seed(7)
    x_1 = torch.randint(spec.vocab, (6, spec.length), generator=made)
    z_a = torch.randint(spec.flow_source().tokens, (6, spec.length), generator=made)
    z_a[:, : spec.anchor] = x_1[:, : spec.anchor]
    if source == "mask":
        z_a[:, 2::2] = spec.vocab
    t = torch.tensor([0.0, 0.25, 0.5, 0.75, 0.5, 0.125], dtype=torch.float64)
    h = torch.tensor([0.25, 0.25, 0.5, 0.25, 0.25, 0.125], dtype=torch.float64)
    return spec, match, Matched(x_1, z_a, t, h, 2, RowNoise(5, torch.arange(6), 11)), stirred(spec, 3)


def law(spec: VelocitySpec, net: nn.Module, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
    """Logits of x_1 [B, free, V] for states x [B, L]; of answers at [MASK] alone, those."""
    answer = net(x, *spec.told(t.float(), h.float()))
    if spec.logits == "others":
        answer = posterior_from_others(answer, x, t[:, None], spec.flow_schedule(), spec.flow_source())
    return answer[:, spec.anchor :]  # type: ignore[no-any-return]


def tilt_of(spec: VelocitySpec) -> Tilt:
    """A stirred float64 compass of another width than the networks'."""
    made = spec_from(spec, replace(SHAPE, width=24, hidden=48, depth=1), "nce")
    return Tilt(0.7, Compass(made, stirred(made, 4).requires_grad_(False)))  # type: ignore[arg-type]


def rises(tilt: Tilt, spec: VelocitySpec, x: Tensor) -> Tensor:
    """weight · ∂E by the share of every token at the free positions of x [B, L], from one-hot inputs: [B, free, V]."""
    net = tilt.compass.net
    with torch.enable_grad():
        shares = torch.nn.functional.one_hot(x, spec.flow_source().tokens).double().requires_grad_()
        (found,) = torch.autograd.grad(net.of(shares @ net.embedding.weight).sum(), shares)
    return tilt.weight * found[:, spec.anchor :, : spec.vocab]


def by_hand(
    spec: VelocitySpec, match: Match, rows: Matched, student: nn.Module, aux: nn.Module
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The student's loss by whole logits and autograd; logits of student and auxiliary, x, z_b and the weights."""
    free = slice(spec.anchor, None)
    told = spec.told(rows.t.float(), rows.h.float())
    logits = law(spec, student, rows.z_a, rows.t, rows.h)
    with torch.no_grad():
        noise = RowNoise(5, torch.arange(6), 11)
        hidden = student.hidden(rows.z_a, *told)[:, free].flatten(0, 1)  # type: ignore[operator]
        own = own_answer(hidden, student.head, own_tokens(spec, rows.z_a, rows.t))  # type: ignore[arg-type]
        x = match.draw(replace(rows, noise=noise), own)
        again = match.forms(x, rows.z_a, rows.t, rows.h, noise)
        z_b = torch.cat([rows.x_1[:, : spec.anchor], again.z_b[:, free]], 1)
        nets = (aux, match.teacher.net)
        log_q, log_p = (law(spec, net, z_b, again.t_b, rows.h).log_softmax(-1) for net in nets)
        if match.tilt is not None:
            log_p = (log_p - rises(match.tilt, spec, z_b)).log_softmax(-1)
        counts = torch.ones_like(x[:, free], dtype=torch.float64)
        asked = counts.clone()
        if spec.source == "mask":
            asked = (rows.z_a[:, free] == spec.vocab).double()
            counts = asked * (again.z_b[:, free] == spec.vocab) / (1 - again.t_b[:, None])
        pulled = law(spec, match.teacher.net, rows.z_a, rows.t, rows.h).log_softmax(-1)
    gain = (log_q - log_p).clamp(-match.clip, match.clip)
    loss = ((logits.softmax(-1) * gain).sum(-1) * counts).mean()
    kl = (pulled.exp() * (pulled - logits.log_softmax(-1))).sum(-1) * asked
    return loss + match.pull * kl[rows.own :].sum() / kl.numel(), logits, x, again.z_b, again.t_b


@pytest.mark.parametrize("tilted", [False, True])
@pytest.mark.parametrize("fresh", [1.0, 0.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_students_loss_and_gradient(kind: str, fresh: float, tilted: bool) -> None:
    spec, match, rows, student = scene(kind, fresh)
    if tilted:
        match.tilt = tilt_of(spec)
    aux = copy.deepcopy(match.auxiliary.net).requires_grad_(False)
    texts: list[Tensor] = []

    def then(hidden: Tensor, head: nn.Linear) -> Tensor:
        hidden = hidden[:, spec.anchor :].flatten(0, 1)
        objective, weights = match(rows, hidden, head, 0, texts.append)
        return fused_loss(hidden, head, objective, weights / len(hidden))

    loss = student(rows.z_a, *spec.told(rows.t.float(), rows.h.float()), then=then)
    loss.backward()
    mine = {name: p.grad.clone() for name, p in student.named_parameters() if p.grad is not None}
    student.zero_grad()
    whole, _, x, _, _ = by_hand(spec, match, rows, student, aux)  # the auxiliary as it was before its step
    whole.backward()
    assert torch.equal(texts[0], x)
    assert loss.item() == pytest.approx(whole.item(), rel=1e-10)
    for name, p in student.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(mine[name], p.grad, rtol=1e-8, atol=1e-12, msg=name)
    assert any(not torch.equal(a, b) for a, b in zip(aux.parameters(), match.auxiliary.net.parameters(), strict=True))
    assert match.measured().keys() == {"aux", "gap", "entropy"}


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_the_auxiliarys_loss(kind: str, dense: bool) -> None:
    """CE(x), or against the law of x given z_a and z_b (less (1 − shown) times the entropy of g); and the teacher's."""
    spec, match, rows, student = scene(kind, 1.0, dense=dense, teacher=0.5)
    aux = copy.deepcopy(match.auxiliary.net)
    free = slice(spec.anchor, None)

    def then(hidden: Tensor, head: nn.Linear) -> Tensor:
        match(rows, hidden[:, free].flatten(0, 1), head, 0, lambda x: None)
        return hidden.sum()

    student(rows.z_a, *spec.told(rows.t.float(), rows.h.float()), then=then)
    _, logits, x, z_b, t_b = by_hand(spec, match, rows, student, aux)
    z_b = torch.cat([rows.x_1[:, : spec.anchor], z_b[:, free]], 1)
    log_q, log_p = (law(spec, net, z_b, t_b, rows.h).log_softmax(-1) for net in (aux, match.teacher.net))
    z_b, x, g = z_b[:, free], x[:, free], logits.softmax(-1)
    target = torch.nn.functional.one_hot(x, spec.vocab).double()
    entropy = torch.zeros_like(t_b)[:, None]
    weight = torch.ones_like(z_b, dtype=torch.float64)
    known = torch.zeros_like(z_b, dtype=torch.bool)
    if kind == "mask":
        known = rows.z_a[:, free] != spec.vocab
        weight = (z_b == spec.vocab) / (1 - t_b[:, None])
    if dense:
        kappa = t_b[:, None, None]
        shows = torch.nn.functional.one_hot(z_b, spec.vocab + 1)[..., : spec.vocab]
        other = 1.0 if kind == "mask" else 1.0 / spec.vocab
        joint = g * (kappa * shows + (1 - kappa) * other)
        posterior = torch.where(known[..., None], target, joint / joint.sum(-1, keepdim=True))
        p = (g * shows).sum(-1)
        shown = kappa[..., 0] * p / (kappa[..., 0] * p + (1 - kappa[..., 0]) * other)
        entropy = torch.where(known, 0.0, (1 - shown) * -(g * g.log()).sum(-1))
        target = posterior
    each = -(target * log_q).sum(-1) - entropy + 0.5 * (log_p.exp() * (log_p - log_q)).sum(-1)
    assert float(match.found["aux"]) == pytest.approx((weight * each).mean().item(), rel=1e-10)


# ── rows, running texts, width ──────────────────────────────────────────────────────────────────────────────────────


def test_rows_and_their_kinds() -> None:
    levels = Levels(torch.ones(11, dtype=torch.float64) / 11, 0.5)
    times = MatchedTimes(Passes((4, 8), (1.0, 3.0)), levels, batch=16, anchor=0.25, own=0.5)
    kinds = times.kinds(torch.arange(16 * 200)).view(200, 16)
    assert torch.equal(kinds[0] == OWN, kinds[7] == OWN)  # the same places in every batch
    assert (kinds == OWN).sum() == (kinds == DATA).sum() == 200 * 6
    assert (kinds == CHAIN).sum() == (kinds == FLOOR).sum() == 200 * 2
    k, j = times.passes.draw(RowNoise(0, torch.arange(4000)))
    assert abs(float((k == 8).double().mean()) - 0.75) < 0.02
    assert bool(((j >= 0) & (j < k)).all())
    for of in (4, 8):
        counts = torch.bincount(j[k == of], minlength=of).double()
        assert float(((counts - counts.mean()) ** 2 / counts.mean()).sum()) < 24.4  # 1 in 1 000 of seven degrees
    with pytest.raises(UserError, match="pass_weights takes 2"):
        Passes((4, 8), (1.0,))


def test_passes_along_a_late_grid() -> None:
    k = torch.full((8,), 8)
    for power in (1.0, 2.5):
        t, h = Passes((8,), (1.0,), power).times(k, torch.arange(8))
        want = torch.tensor(LateJump(LINE, Uniform(5), power=power).steps_in(8), dtype=torch.float64)
        torch.testing.assert_close(t, want[:, 0])
        torch.testing.assert_close(t + h, want[:, 1])


def test_texts_go_on_pass_by_pass() -> None:
    running = Running(4, 2000, LINE)
    running.bind(WORLD)
    places, k = torch.tensor([1, 3]), torch.tensor([2, 3])
    got_k, j, goes = running.next(places, k, torch.tensor([0, 1]))
    assert (got_k.tolist(), j.tolist(), goes.tolist()) == ([2, 3], [0, 1], [False, False])
    z, x = torch.zeros(2, 2000, dtype=torch.int64), torch.ones(2, 2000, dtype=torch.int64)
    t, h = j.double() / k, 1.0 / k.double()
    running.go_on(places, k, j, x, z, t, h, RowNoise(0, torch.arange(2)))
    assert running.z[places].double().mean(1).tolist() == pytest.approx([0.5, 0.5], abs=0.04)  # ½ of 1, ⅓ of ⅔
    got_k, j, goes = running.next(places, torch.tensor([8, 8]), torch.tensor([5, 5]))
    assert (got_k.tolist(), j.tolist(), goes.tolist()) == ([2, 3], [1, 2], [True, True])
    running.go_on(places, k, j, x, running.z[places], j.double() / k, h, RowNoise(1, torch.arange(2)))
    assert bool((running.z[places] == 1).all())  # the last pass brings everything
    got_k, j, goes = running.next(places, torch.tensor([8, 4]), torch.tensor([5, 3]))
    assert (got_k.tolist(), j.tolist(), goes.tolist()) == ([8, 4], [0, 0], [False, False])  # new texts from noise
    assert set(running.parts()["texts"]) == {"k", "j", "z"}


def test_width_is_the_gradient_of_the_pooled_divergence() -> None:
    """weight · KL(own ‖ data) of mean frequencies: its gradient by the logits of a position, up to the mean's 1/N."""
    spec, match, rows, _ = scene("uniform", 1.0)
    width = Width(0.7, spec.vocab)
    width.bind(WORLD)
    made = torch.Generator().manual_seed(3)
    for _ in range(3):
        width.add(*(torch.randint(spec.vocab, (50,), generator=made) for _ in range(2)))
    logits = torch.randn(1, spec.vocab, generator=made, dtype=torch.float64)
    own, data = (width.means + 0.01 / spec.vocab).double()
    leaf = logits.clone().requires_grad_()
    (leaf.softmax(-1) * 0.7 * (own / data).log()).sum().backward()
    target = answer(match.teacher.net, spec, rows.z_a, rows.t, rows.h)
    flat = replace(target, bias=torch.zeros(spec.vocab, dtype=torch.float64))
    biased = width.on(flat).bias
    assert biased is not None
    one = torch.ones(1, dtype=torch.float64)
    reward(logits, torch.zeros_like(logits), biased[None], one, spec.vocab, 100.0)
    torch.testing.assert_close(logits, leaf.grad, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("source", ["uniform", "mask"])
def test_a_tilted_teacher_is_one_head_padded_or_not(source: str) -> None:
    """log p − weight · ∂E, normalised; with a reward for width on top, as the two say apart."""
    spec = spec_of(source, step_size=False)
    net, tilt, width = stirred(spec, 1), tilt_of(spec), Width(0.7, spec.vocab)
    width.means = torch.rand(2, spec.vocab, generator=torch.Generator().manual_seed(3))
    x = torch.randint(spec.flow_source().tokens, (5, spec.length), generator=torch.Generator().manual_seed(7))
    t = torch.full((5,), 0.5, dtype=torch.float64)
    teacher = answer(net, spec, x, t, t)
    every = slice(0, 5 * (spec.length - spec.anchor))
    wanted = (teacher.log_p(every) - rises(tilt, spec, x).flatten(0, 1)).log_softmax(-1)
    tilted = tilt.on(teacher, x, spec.anchor)
    torch.testing.assert_close(tilted.log_p(every), wanted, rtol=1e-10, atol=1e-12)
    ready = replace(teacher, head=padded(teacher.weight, teacher.bias, torch.float64))
    head = tilt.on(ready, x, spec.anchor).head
    assert head is not None
    torch.testing.assert_close(head(tilted.hidden[0]).log_softmax(-1), wanted, rtol=1e-10, atol=1e-12)
    bias = width.on(teacher).log_p(every) - teacher.log_p(every)
    both = width.on(tilted).log_p(every)
    torch.testing.assert_close(both, (wanted + bias).log_softmax(-1), rtol=1e-10, atol=1e-12)


# ── the watch ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_bits_of_texts() -> None:
    texts = torch.tensor([[0, 0, 1, 1], [2, 2, 2, 2]])
    assert histogram_bits(texts, 5, WORLD).tolist() == pytest.approx([0.5, 1.5])
    own = torch.tensor([[False, True, True, False], [False] * 4])  # the second row is all given
    assert histogram_bits(texts, 5, WORLD, own).tolist() == pytest.approx([0.5, 1.0])


def test_a_collapse_is_told_and_taken_back(capsys: pytest.CaptureFixture[str]) -> None:
    spec = spec_of()
    student, average = (stirred(spec, seed).float() for seed in (1, 2))
    teacher = Velocity(spec, stirred(spec, 3).float(), spec.flow_source(), spec.flow_schedule())
    auxiliary = Auxiliary(AuxiliarySettings(), settings_of(), spec, teacher)
    optimiser = Optimiser(student, settings_of().optim)
    context = Context(ema=average, world=WORLD, optimiser=optimiser)
    auxiliary.bind(context)
    watch = Watch(WatchSettings(every=2, least=0.5, rollback=1))
    watch.bind(context, student, auxiliary)
    nets = (student, average, auxiliary.net)
    data, dull = torch.arange(8).view(2, 4), torch.zeros(2, 4, dtype=torch.int64)

    def stir(value: float) -> None:
        with torch.no_grad():
            for net in nets:
                for p in net.parameters():
                    p.fill_(value)
        for tensor in (*optimiser.state().values(), *auxiliary.optimiser.state().values()):
            tensor.fill_(1.0)

    stir(1.0)
    for step in (0, 1):
        assert not watch.look(step)
        watch.add(data, data, spec.vocab)
    assert not watch.look(2)  # all is well: these weights are kept
    stir(2.0)
    watch.add(dull, data, spec.vocab)
    assert not watch.look(3)
    assert watch.look(4)
    assert not watch.look(4)  # once a step, however many parts it has
    assert all(bool((p == 1.0).all()) for net in nets for p in net.parameters())
    assert not any(x.any() for x in (*optimiser.state().values(), *auxiliary.optimiser.state().values()))
    assert optimiser.pace == 0.5
    said = capsys.readouterr().err
    assert "step 4: the student's texts have 0% of the entropy of the data" in said
    assert "back to its last good weights, at 0.5 of the learning rate" in said
    stir(3.0)
    watch.add(dull, data, spec.vocab)
    assert not watch.look(6)  # it went back once, and may not again
    assert "set watch.rollback" in capsys.readouterr().err
    given = torch.tensor([[True, True, True, False]] * 2)  # what was given is nobody's width
    watch.add(torch.where(given, data, dull), data, spec.vocab, (~given, ~given))
    assert not watch.look(8)
    assert "0% of the entropy" in capsys.readouterr().err
    assert all(bool((p == 3.0).all()) for p in student.parameters())
    assert {"watch", "good"} == set(watch.parts())
