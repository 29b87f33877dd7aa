import math

import pytest
import torch
from torch import Tensor, nn
from toy_training import Net

from tsdfm.engine import muon
from tsdfm.engine.muon import LIKE_ADAMW, QUINTIC, hidden_matrices, orthogonal
from tsdfm.engine.optim import Optimiser
from tsdfm.engine.settings import OptimSettings
from tsdfm.errors import UserError
from tsdfm.nn.ddit import DDiT
from tsdfm.nn.settings import NetSettings


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_singular_values_go_to_one_and_singular_vectors_stay() -> None:
    matrices = random(3, 6, 10)
    u, s, v = torch.linalg.svd(matrices, full_matrices=False)
    found = orthogonal(matrices)
    values = u.mT @ found @ v.mT  # diagonal, if the vectors stayed
    diagonal = values.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(values, torch.diag_embed(diagonal), rtol=0, atol=1e-9)
    for i in range(3):  # what the polynomial makes of each singular value, one number at a time
        for x, y in zip(s[i] / s[i].square().sum().sqrt(), diagonal[i], strict=True):
            value = float(x)
            for _ in range(5):
                value = QUINTIC[0] * value + QUINTIC[1] * value**3 + QUINTIC[2] * value**5
            assert float(y) == pytest.approx(value, rel=1e-5)
    assert 0.6 < float(diagonal.min()) < float(diagonal.max()) < 1.3


def test_it_takes_the_matrices_that_multiply_tokens() -> None:
    net = DDiT(NetSettings(preset="tiny").shape(), vocab=20, tokens=20, step_size=True)
    names = hidden_matrices(net)
    ends = {".".join(n.split(".")[2:]) for n in names}
    assert ends == {"qkv.weight", "out.weight", "mlp.0.weight", "mlp.2.weight"}
    assert len(names) == 4 * len(net.blocks)


def svd_step(w: Tensor, m: Tensor, g: Tensor, lr: float, decay: float) -> tuple[Tensor, Tensor]:
    """One matrix, one step: the same polynomial applied to the singular values."""
    m = 0.95 * m + 0.05 * g
    u, s, v = torch.linalg.svd(0.05 * g + 0.95 * m, full_matrices=False)
    s = s / (s.square().sum().sqrt() + 1e-7)
    for _ in range(5):
        s = QUINTIC[0] * s + QUINTIC[1] * s**3 + QUINTIC[2] * s**5
    size = LIKE_ADAMW * math.sqrt(max(w.shape))
    return w * (1 - lr * decay) - lr * size * (u * s) @ v, m


def test_a_step_is_muons_and_one_that_is_not_finite_changes_nothing() -> None:
    net = DDiT(NetSettings(preset="tiny").shape(), vocab=20, tokens=20).double()
    optimiser = Optimiser(net, OptimSettings(rule="muon", weight_decay=0.3, clip=0))
    names = hidden_matrices(net)
    thirds = {n: 3 if "qkv" in n else 1 for n in names}
    weights = {n: list(net.get_parameter(n).detach().clone().chunk(thirds[n])) for n in names}
    moments = {n: [torch.zeros_like(w) for w in weights[n]] for n in names}
    for step in range(3):
        for i, p in enumerate(net.parameters()):
            p.grad = random(*p.shape, seed=100 * step + i)
        if step == 1:
            before = {k: v.clone() for k, v in {**net.state_dict(), **optimiser.state()}.items()}
            net.get_parameter(names[0]).grad[0, 0] = math.nan  # type: ignore[index]
            assert bool(optimiser.step(0.1)[1])
            after = {**net.state_dict(), **optimiser.state()}
            assert all(torch.equal(before[k], after[k]) for k in before)
            continue
        for n in names:
            grad = net.get_parameter(n).grad
            assert grad is not None
            for i, g in enumerate(grad.clone().chunk(thirds[n])):
                weights[n][i], moments[n][i] = svd_step(weights[n][i], moments[n][i], g, 0.1, 0.3)
        optimiser.step(0.1)
        state = optimiser.state()
        for n in names:
            torch.testing.assert_close(net.get_parameter(n).detach(), torch.cat(weights[n]), rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(state[f"{n}.momentum"], torch.cat(moments[n]), rtol=1e-6, atol=1e-8)


def test_the_rest_stays_with_adamw() -> None:
    nets = [Net(), Net()]
    optimisers = [Optimiser(nets[0], OptimSettings(rule="muon", clip=0)), Optimiser(nets[1], OptimSettings(clip=0))]
    for net, optimiser in zip(nets, optimisers, strict=True):
        for i, p in enumerate(net.parameters()):
            p.grad = random(*p.shape, seed=i).float()
        optimiser.step(0.1)
    turned = set(hidden_matrices(nets[0]))
    assert turned == {"blocks.0.inner.weight", "blocks.1.inner.weight"}
    for name, p in nets[0].named_parameters():
        assert torch.equal(p, nets[1].get_parameter(name)) == (name not in turned)


def test_a_network_without_blocks_is_refused() -> None:
    with pytest.raises(UserError, match="adamw"):
        Optimiser(nn.Linear(2, 2), OptimSettings(rule="muon"))


def test_matrices_in_pieces_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As FSDP's are; every parameter stands in for such a piece here."""
    monkeypatch.setattr(muon, "sharded_tensor", lambda p: isinstance(p, nn.Parameter))
    with pytest.raises(UserError, match="ddp"):
        Optimiser(Net(), OptimSettings(rule="muon"))


def test_many_matrices_are_worked_on_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    nets = [DDiT(NetSettings(preset="tiny").shape(), vocab=20, tokens=20) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    made = [Optimiser(nets[0], OptimSettings(rule="muon"))]
    monkeypatch.setattr(muon, "ROOM", 1)
    made.append(Optimiser(nets[1], OptimSettings(rule="muon")))
    assert [len(one.muon.groups) for one in made if one.muon] == [2, 16]
    for net, optimiser in zip(nets, made, strict=True):
        for i, p in enumerate(net.parameters()):
            p.grad = random(*p.shape, seed=i).float()
        optimiser.step(0.1)
    for name, p in nets[0].named_parameters():
        torch.testing.assert_close(p, nets[1].get_parameter(name), rtol=1e-4, atol=1e-6)
    assert made[0].state().keys() == made[1].state().keys()


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon of its own")
@pytest.mark.parametrize("shape", [(8, 8), (6, 12), (12, 6)])
def test_the_rule_is_torchs(shape: tuple[int, int]) -> None:
    """Up to bfloat16, in which torch's turns its matrices on any device: 2⁻⁸ of a move a step."""
    mine, theirs = (nn.Parameter(random(*shape).float()) for _ in range(2))
    own = muon.Muon({"w": mine}, momentum=0.95, weight_decay=0.3)
    other = torch.optim.Muon([theirs], lr=0.1, weight_decay=0.3, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for step in range(4):
        mine.grad, theirs.grad = (random(*shape, seed=step + 1).float() for _ in range(2))
        own.step(0.1, torch.tensor(True))
        other.step()
        torch.testing.assert_close(mine.detach(), theirs.detach(), rtol=0, atol=0.1 * LIKE_ADAMW * 12**0.5 * 2**-5)
    assert float((mine.detach() - random(*shape).float()).abs().max()) > 0.1  # it did move
