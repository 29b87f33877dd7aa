import pytest
import torch
from compass_parts import ANCHOR, LENGTH, VOCAB, make_teacher

from tsdfm.compass import propose as module
from tsdfm.compass.propose import propose, reconstruct
from tsdfm.errors import UserError
from tsdfm.flow import draw, reads_of


def setting(source, seed=1, batch=6, n=3):
    g = torch.Generator().manual_seed(seed)
    top = VOCAB + (source == "mask")
    x = torch.randint(0, top, (batch, LENGTH), generator=g)
    if source == "mask":
        x[:, ::3] = VOCAB
    t = torch.rand(batch, generator=g, dtype=torch.float64) * 0.7
    h = torch.rand(batch, generator=g, dtype=torch.float64) * 0.3
    t[0], h[0] = 0.75, 0.25  # a last step among the others
    u = torch.rand(batch, n, LENGTH, 2, generator=g, dtype=torch.float64)
    return x, t, h, u


@pytest.mark.parametrize("name", ["euler", "cumulative", "sedd-analytic"])
@pytest.mark.parametrize("source", ["uniform", "mask"])
@pytest.mark.parametrize("step_size", [False, True])
def test_sparse_jumps_equal_whole_ones(source, name, step_size, monkeypatch):
    monkeypatch.setitem(module.ROOM, "cpu", 7 * VOCAB)  # several parts
    velocity = make_teacher(source, step_size=step_size)
    x, t, h, u = setting(source)
    jump = velocity.jump(name)
    logits = velocity.reading(reads_of(jump))(x, t.float(), h.float())
    got = propose(velocity, x, t, h, u, jump)
    for n in range(3):
        whole = jump.move(x, logits, t, h, u[:, n])
        whole[:, :ANCHOR] = x[:, :ANCHOR]
        assert torch.equal(got[:, n], whole)
    assert (got != x[:, None]).any()
    assert not torch.equal(got[:, 0], got[:, 1])


def test_the_jump_of_a_student_is_cumulative():
    names = [type(make_teacher(step_size=s).jump()).__name__ for s in (True, False)]
    assert names == ["CumulativeJump", "EulerJump"]


def test_a_model_proposes_by_the_jump_of_its_method():
    """Whatever it is called, if it decides position by position; one that looks at a whole text is refused."""
    velocity = make_teacher("mask", jump="remdm-cap:0.3")
    x, t, h, u = setting("mask")
    got = propose(velocity, x, t, h, u, velocity.jump())
    logits = velocity(x, t.float(), h.float())
    for n in range(3):
        whole = velocity.jump("remdm-cap:0.3").move(x, logits, t, h, u[:, n])
        assert torch.equal(got[:, n, ANCHOR:], whole[:, ANCHOR:])
    for name in ("remdm-conf", "hazard-euler"):
        with pytest.raises(UserError, match="looks at a whole text"):
            propose(velocity, x, t, h, u, velocity.jump(name))


def test_reconstruction_draws_from_the_teacher_where_it_is_asked_to():
    velocity = make_teacher("mask")
    x, t, _, u = setting("mask")
    where = u[:, 0, :, 0] < 0.3
    got = reconstruct(velocity, x, t, where, u[:, 0, :, 1])
    logits = velocity(x, t.float(), t.float())
    assert torch.equal(got, torch.where(where, draw(logits, u[:, 0, :, 1]), x))
