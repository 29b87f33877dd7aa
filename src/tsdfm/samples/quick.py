"""How the network is run for sampling, and how many texts at a time.

On a GPU the network's body is recorded once for a batch of given size (`engine.graphs`) and replayed in every step of
every batch: a pass of 12 blocks is then one call of the host. A last batch that is smaller is filled up with copies of
its last row, whose results nobody looks at. The head stays outside of the recording: each step asks it for other
positions, only for those that may move (`flow.solve`). A single text is another case: there the host, not the
arithmetic, takes the time, so all of its steps, heads and draws and all, are one recording (`OneRow`); where its states
are looked at, each step is one.

    auto      recorded as it is, once a batch size has been asked for as many passes as pay for it, in one call or in
              several; nothing is recorded on a CPU
    record    recorded as it is, from the beginning
    compile   compiled by torch.compile, and then recorded: half a minute for the first pass, the quickest after it
    off       launched as it is

A recording runs the kernels that were recorded: the same bits. Compiled, the network rounds in other places, so with
`compile` a draw close to the border between two tokens may fall on the other side, as it may in another batch size.

In 16 bits on a GPU a network takes fewer kernels than it is written with (`lean`), recorded or not. As it is launched
it follows its weights when they change; a recording in 16 bits has those of its making (`settled`).
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from tsdfm.engine.graphs import GraphMemory, Replayed, Routines
from tsdfm.engine.runner import Compiled, wrapped
from tsdfm.errors import UserError
from tsdfm.flow import Steps, reads_of, uniform
from tsdfm.flow.logits import Reads
from tsdfm.flow.noise import sent, uniforms
from tsdfm.flow.walk import Walk
from tsdfm.kernels.head import SettledHead, quick_logits
from tsdfm.nn.together import Together, gelu_inside, on_weights, same_weights, together
from tsdfm.nn.velocity import Velocity, VelocitySpec
from tsdfm.settings import nearest

Net = TypeVar("Net", bound=nn.Module)
HOW = ("auto", "compile", "record", "off")
PAYS = 16  # passes of one shape that make up for recording it: 0.15 s against 9 ms a pass at batch 1 (170M, one H200)
STEPS = 32  # kinds of whole steps of one text that are recorded: by temperature, top-p and what is given
SHAPES = 8  # batch sizes that one network is recorded for; others are launched plainly
MOST_ROWS, MOST_TOKENS = 256, 1 << 16  # of a batch: a GPU is long busy then
SHARE = 2  # a half of the free memory is for a batch; the rest is for the logits of a chunk, the draws and others


@dataclass(frozen=True)
class OneRow:
    """Whole steps of a single text: all logits at once, and nothing that the host waits for, so that network, head and
    draw are one recording where there are `routines`. The numbers are the same with and without."""

    velocity: Velocity
    routines: Routines | None = None

    def step(self, walk: Walk, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """The state [1, L] after a step from t [1] to t + h [1]."""
        u = uniform(walk.noise, (*x.shape, 2), x.device)
        return self.made(walk, walk.at_once, [x, t, h, u])

    def solve(self, walk: Walk, x: Tensor, steps: Steps) -> Tensor:
        """The text [1, L] after all steps: one recording for each number of them."""
        u = uniforms(walk.noise, len(steps), (*x.shape, 2), x.device)
        when = [[a for a, _ in steps], [b - a for a, b in steps]]
        times = sent(torch.tensor(when, dtype=torch.float64), x.device)
        return self.made(walk, walk.all_at_once, [x, times, u])

    def made(self, walk: Walk, work: Callable[..., list[Tensor]], inputs: list[Tensor]) -> Tensor:
        """The state that `work` gives, recorded where there are routines."""
        run, inputs = partial(work, Pass(self.velocity, 1)), [*inputs, *walk.given()]
        if self.routines is None:
            state, bad = run(*inputs)
        else:
            plan = work.__name__, walk.jump, walk.shaper.dials, walk.held is None, walk.sets is None
            state, bad = self.routines.call(plan, run, inputs)
        walk.shaper.bad |= bad
        return state


@dataclass(frozen=True)
class Pass:
    """A velocity as a solver's model, a `flow.walk.PartialModel`; its network is called with at least `rows` rows.

    With `places`, its head is asked for that many positions at a time, the last of them repeated: then a position's
    logits do not round by how many others were asked for. With `by_row` its head, and a solver's draws, take one text
    at a time. `one` makes the steps of single texts (a `StepModel`).
    """

    velocity: Velocity
    rows: int = 0
    reads: Reads = "posterior"
    places: int = 0
    one: OneRow | None = None
    by_row: bool = False

    def takes(self, walk: Walk, x: Tensor) -> bool:
        """Is it a step of one text, by a jump that is tensors alone?"""
        plain = getattr(walk.jump, "row_wise", False) and reads_of(walk.jump) == "posterior" and not self.latent
        return self.one is not None and len(x) == 1 and plain and walk.shaper.bias is None

    def step(self, walk: Walk, x: Tensor, t: Tensor, h: Tensor) -> Tensor:
        """The step of such a walk."""
        assert self.one is not None
        return self.one.step(walk, x, t, h)

    def solve(self, walk: Walk, x: Tensor, steps: Steps) -> Tensor:
        """All steps of such a walk."""
        assert self.one is not None
        return self.one.solve(walk, x, steps)

    @property
    def latent(self) -> bool:
        """Is the network told a number of the text's own?"""
        return self.velocity.spec.latent

    def __call__(self, x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Tensor:
        """Logits [B, L, V], or the score."""
        logits: Tensor = self.through(x_t, t, h, latent, logits_by_row if self.by_row else quick_logits)
        mean = self.velocity.spec.meaning(self.reads)
        return logits if mean is None else mean(logits, x_t, t[:, None])

    def look(self, x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None = None) -> Callable[[Tensor], Tensor]:
        """One pass; the answer gives the logits [N, V] of places [N] among the B·L positions."""
        read: Callable[[Tensor], Tensor] = self.through(x_t, t, h, latent, by_place)
        answer = read if not self.places else partial(in_parts, read, self.places)
        mean, flat = self.velocity.spec.meaning(self.reads), x_t.flatten()
        times = t.repeat_interleave(x_t.shape[1])
        return answer if mean is None else lambda places: mean(answer(places), flat[places], times[places])

    def through(
        self, x_t: Tensor, t: Tensor, h: Tensor, latent: Tensor | None, then: Callable[[Tensor, nn.Linear], Any]
    ) -> Any:
        """`then(hidden, head)` of the network, as its forward has it."""
        net, rows = self.velocity.net, max(self.rows, len(x_t))
        t, *more = self.velocity.spec.told(t, h, latent)
        told = (None if x is None else filled(x, rows) for x in more)
        hidden = net.hidden(filled(x_t, rows), filled(t, rows), *told)
        return then(hidden[: len(x_t)], net.head)


def by_place(hidden: Tensor, head: nn.Linear) -> Callable[[Tensor], Tensor]:
    """places [N] → logits [N, V] of a hidden state [B, L, D]."""
    flat = hidden.flatten(0, 1)
    return lambda places: quick_logits(flat[places], head)


def logits_by_row(hidden: Tensor, head: nn.Linear) -> Tensor:
    """Logits [B, L, V] of a hidden state [B, L, D], made for one row at a time."""
    return torch.cat([quick_logits(row, head) for row in torch.split(hidden, 1)])


def in_parts(read: Callable[[Tensor], Tensor], size: int, places: Tensor) -> Tensor:
    """`read(places)` [N, V] by calls for exactly `size` places each."""
    if not len(places):
        return read(places)
    return torch.cat([read(filled(part, size))[: len(part)] for part in torch.split(places, size)])


def filled(x: Tensor, rows: int) -> Tensor:
    """x [B, …] with its last row repeated up to `rows`."""
    return x if len(x) == rows else torch.cat([x, x[-1:].expand(rows - len(x), *x.shape[1:])])


@dataclass
class Quick:
    """The recordings of one network; they live as long as this object does."""

    velocity: Velocity
    how: str = "auto"
    bf16: bool = False
    sizes: Literal["each", "any"] = "each"
    """Code that is compiled for each batch size, or one for all of them but 1."""
    plain: Velocity | None = None
    """As it is launched; on the network's own weights."""
    quick: Velocity | None = None
    one: OneRow | None = None
    asked: Counter[int] = field(default_factory=Counter)
    """Passes that were asked for, by rows of a batch."""

    def __post_init__(self) -> None:
        if self.how not in HOW:
            raise UserError(f"no way to run a network is called {self.how!r}{nearest(self.how, HOW)}")

    def model(self, rows: int, passes: int, reads: Reads = "posterior") -> Pass:
        """The model for batches of up to `rows` texts, which go through the network `passes` times in all."""
        self.asked[rows] += passes
        whole = rows == 1 and self.velocity.device.type == "cuda"
        if self.plain is None:
            self.plain = lean(self.velocity, self.bf16)
        if not self.pays(rows):
            return Pass(self.plain, reads=reads, one=OneRow(self.plain) if whole else None)
        if self.quick is None:
            self.record(self.plain)
        assert self.quick is not None
        return Pass(self.quick, rows, reads, one=self.one if whole else None)

    def record(self, plain: Velocity) -> None:
        """Make the network that is recorded, for batches and for whole steps of one text."""
        net, pool = settled(plain.net) if self.bf16 else plain.net, GraphMemory()
        body = Compiled(net.hidden, self.sizes) if self.how == "compile" else net.hidden
        self.quick = replace(plain, net=wrapped(net, Replayed(body, net, pool, SHAPES)))
        self.one = OneRow(replace(plain, net=wrapped(net, body)), Routines(body, net, pool, STEPS))

    def pays(self, rows: int) -> bool:
        """Is it worth recording batches of so many rows?"""
        if self.how in ("compile", "record"):
            return True
        return self.how == "auto" and self.velocity.device.type == "cuda" and self.asked[rows] >= PAYS


def lean(velocity: Velocity, bf16: bool) -> Velocity:
    """The same on the same weights, in fewer kernels where it runs in 16 bits on a GPU; elsewhere it is itself."""
    if not bf16 or velocity.device.type != "cuda":
        return velocity
    return replace(velocity, net=gelu_inside(together(velocity.net)))


def settled(net: Net) -> Net:
    """A network whose products are made in bf16, with its weights in bf16 once and for all: the same bits.

    Autocast casts them in every pass, which takes longer than the arithmetic of a single text. What is not a product
    stays as it is. A network that is settled already is itself.
    """
    if isinstance(net.head, SettledHead):
        return net
    made: Any = copy.deepcopy(net)
    for module in made.modules():
        if isinstance(module, Together):
            module.settle(torch.bfloat16)
        if isinstance(module, nn.Linear):
            module.to(torch.bfloat16)
    made.head = SettledHead(net.head, torch.bfloat16)  # type: ignore[arg-type]
    return cast(Net, made)


class RowLinear(nn.Linear):
    """A linear layer that takes rows [B, C] one at a time: none rounds by how many there are."""

    def forward(self, input: Tensor) -> Tensor:
        """[…, C] → […, D]"""
        rows = torch.split(input, 1) if input.dim() == 2 and len(input) > 1 else (input,)
        made = [nn.functional.linear(row, self.weight, self.bias) for row in rows]
        return made[0] if len(made) == 1 else torch.cat(made)


def row_by_row(net: Net) -> Net:
    """The same network on the same weights, whose layers of the condition, [B, C], take rows one at a time.

    A product with a row or two rounds in another way than one with many, and all others of a network have at least as
    many rows as a text has tokens. So in batches of any size a text may have the bits that it has alone; whether it
    does is a matter of the machine's library (`serve.served.Served.steady` looks).
    """
    made = same_weights(net)
    for name, layer in list(made.named_modules()):
        if type(layer) is nn.Linear and layer is not made.head:
            made.set_submodule(name, on_weights(RowLinear, layer))
    return cast(Net, made)


def free_bytes(device: torch.device) -> int:
    """Memory of a GPU that this process could still use: what the driver has, and what torch keeps but does not use."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


def row_bytes(spec: VelocitySpec, *, whole: bool, states: int = 1) -> int:
    """What one text takes on a GPU at most.

    The body holds some ten tensors as wide as the residual stream and three as wide as the MLP at once, four bytes a
    number; `states` are those that go through a network together for one text (a guide's candidates). With `whole`
    all logits of a step exist: two bytes a number as they come, four when shaped, and four twice for a recorder's
    softmax.
    """
    body = spec.length * 4 * (10 * spec.shape.width + 3 * spec.shape.hidden)
    logits = spec.length * spec.vocab * 14 if whole else 0
    return states * body + logits


def fitting(room: int, cost: int, length: int) -> int:
    """Texts of `cost` bytes and `length` tokens in a batch within `room` bytes: a power of 2, so that a little more or
    less of free memory makes no other batch, and with it no other rounding of bf16."""
    rows = max(1, min(MOST_ROWS, MOST_TOKENS // length, room // SHARE // cost))
    return 1 << rows.bit_length() - 1


def by_logits(spec: VelocitySpec, device: torch.device) -> int:
    """Texts whose logits take a gigabyte on a GPU, a quarter of one on a CPU: the same whatever memory is free."""
    room = 2**28 if device.type == "cuda" else 2**26
    return max(1, min(MOST_ROWS, room // (spec.length * spec.vocab)))
