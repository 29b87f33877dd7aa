"""A model as it is served: what it is called, how it is sampled where nothing was said, and in which batches."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor

from tsdfm import __version__
from tsdfm.distil.midpoint import Energy
from tsdfm.distil.stats import Stats
from tsdfm.engine.precision import autocast
from tsdfm.errors import UserError
from tsdfm.flow import Jump, RowNoise, reads_of, steps_of
from tsdfm.flow.jump import remembers
from tsdfm.flow.logits import Reads
from tsdfm.flow.noise import JoinedNoise, sent
from tsdfm.flow.walk import begin
from tsdfm.methods import bound_of
from tsdfm.nn.network import TokenNet
from tsdfm.samples.defaults import RUNS, defaults_of
from tsdfm.samples.given import Given
from tsdfm.samples.guide import Guide, compass_for, own_compass
from tsdfm.samples.lengths import bounds
from tsdfm.samples.model import TextModel, load
from tsdfm.samples.quick import Pass, lean, row_by_row, settled
from tsdfm.serve.row import Crowd, Row, gathered
from tsdfm.store.defaults import SampleDefaults

ROWS = 64  # texts in the largest batch, where nothing else was asked for: a GPU is long busy then
FEW = 8  # texts in the running batch of a CPU: with more, each takes longer and none is done sooner
MOST = 100  # jumps that are kept by their names
TOGETHER = (1, 2, 3, 4)  # rows of a batch on a CPU: with more, a row takes no less time
PLACES = 512  # positions that the head is asked for at a time, where batches have one shape


class Start(NamedTuple):
    """What a text begins from; `dials` are temperature and top-p, `given` is its row, [1, L], on the host."""

    number: int
    seed: int
    steps: int
    dials: tuple[float, float]
    jump: str = "auto"
    guide: str = "blind"
    given: Given | None = None


class Elsewhere:
    """A compass whose weights are in another process."""

    def energy(self, tokens: Tensor) -> Tensor:
        """Not here."""
        raise RuntimeError("the weights of this compass are in another process")


@dataclass(frozen=True)
class Served:
    """A model on one device. `shapes` are the batch sizes that its passes are filled up to.

    With `by_row`, all but the network's body takes one text at a time (`samples.quick.row_by_row`).
    """

    name: str
    model: TextModel
    defaults: SampleDefaults = RUNS
    compass: Energy | None = None
    shapes: tuple[int, ...] = (1,)
    by_row: bool = False
    told: str = ""
    """Its fingerprint, where its weights are in another process."""
    jumps: dict[str, Jump] = field(default_factory=dict, repr=False, compare=False)
    passes: dict[tuple[int, Reads], Pass] = field(default_factory=dict, repr=False, compare=False)
    limits: list[Tensor] = field(default_factory=list, repr=False, compare=False)
    found: list[bool] = field(default_factory=list, repr=False, compare=False)

    @property
    def device(self) -> torch.device:
        """Where it runs."""
        return self.model.velocity.device

    @property
    def length(self) -> int:
        """Tokens of a text, what is given of it included."""
        return self.model.velocity.spec.length - self.model.velocity.spec.anchor

    @property
    def fingerprint(self) -> str:
        """Equal where the same request gives the same text: of weights, versions, device and shapes."""
        if self.told:
            return self.told
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu"
        words = (self.model.velocity.sha256, __version__, torch.__version__, kind, self.model.quick, self.shapes)
        return "tsdfm-" + hashlib.sha256(repr(words).encode()).hexdigest()[:12]

    def without_weights(self) -> Served:
        """The same for a process that reads requests and words answers: small to send, and not able to write."""
        bare = replace(self.model, velocity=replace(self.model.velocity, net=cast(TokenNet, None)))
        compass = None if self.compass is None else Elsewhere()
        return replace(
            self, model=bare, compass=compass, told=self.fingerprint, jumps={}, passes={}, limits=[], found=[]
        )

    def at(self, shape: int, reads: Reads = "posterior") -> Pass:
        """The network for batches that are filled up to `shape` rows, and jumps that read so (`flow.reads_of`)."""
        if (shape, reads) not in self.passes:
            places = PLACES if self.shapes == (shape,) and shape > 1 else 0
            made = self.model.passes.model(shape, 1, reads)
            self.passes[shape, reads] = replace(made, rows=shape, places=places, by_row=self.by_row)
        return self.passes[shape, reads]

    def jump(self, name: str, guide: str, held: Tensor | None = None) -> Jump:
        """The jump that a request means, or one line that says why there is none."""
        if name not in self.jumps:
            made = self.model.jump(self.defaults.jump if name == "auto" else name)
            if len(self.jumps) == MOST:
                self.jumps.clear()
            self.jumps[name] = made
        plain = self.jumps[name]
        if guide == "blind":
            return plain
        if self.compass is None:
            raise UserError(f"{self.name} is served without a compass: guide must be blind")
        found = Guide(guide, self.compass)
        return found.around(plain, held, Stats(found.settings.k), self.model.velocity.spec.prompted)

    def begin(self, starts: Sequence[Start]) -> list[Row]:
        """Texts at their beginning, in the order of `starts`: those that may share passes begin together."""
        rows, shared = dict[int, Row](), dict[str, list[int]]()
        for number, start in enumerate(starts):
            if max(self.shapes) > 1 and start.guide == "blind" and not remembers(type(self.jump(start.jump, "blind"))):
                shared.setdefault(start.jump, []).append(number)
            else:
                rows[number] = self.crowd([start]).rows[0]
        for some in shared.values():
            rows.update(zip(some, self.crowd([starts[number] for number in some]).rows, strict=True))
        return [rows[number] for number in range(len(starts))]

    def crowd(self, starts: Sequence[Start]) -> Crowd:
        """Texts that begin together: one, or several with a jump that remembers nothing, and no guide."""
        first, spec = starts[0], self.model.velocity.spec
        plain = first.guide == "blind" and not remembers(type(self.jump(first.jump, "blind")))
        here = torch.device("cpu") if plain else self.device  # a device that is making a pass is not waited for
        given = joined_given([start.given for start in starts], spec.length, here)
        chosen = self.jump(first.jump, first.guide, given.held if given else None)
        noise: RowNoise | JoinedNoise
        if len(starts) == 1:
            noise = RowNoise(first.seed, torch.tensor([first.number], device=here))
        else:
            noise = JoinedNoise.begun([start.seed for start in starts], [start.number for start in starts])
        walk, x = begin(
            self.at(1, reads_of(chosen)),
            self.model.velocity.source.draw((len(starts), spec.length), noise, here, self.model.never_noise),
            chosen,
            noise,
            given=(given.held, given.tokens) if given else (None, None),
            dials=[start.dials for start in starts],
            limits=given.limits(self.model.tokenizer) if given else None,
        )
        if here != self.device:
            walk, x = walk.moved(self.device, self.allowed(walk.shaper.allowed)), sent(x, self.device)
        alike = f"{first.jump} {first.guide}"
        own = self.jump(first.jump, "blind")
        return Crowd(walk, x, [Row(walk.jump, steps_of(own, start.steps), alike) for start in starts])

    def allowed(self, sets: Tensor | None) -> Tensor | None:
        """The allowed tokens [sets, V] that all rows of this model share, on its device."""
        if sets is not None and not self.limits:
            self.limits.append(sets.to(self.device))
        return None if sets is None else self.limits[0]

    def gather(self, rows: Sequence[Row], shape: int) -> Crowd:
        """The crowd of rows that share a pass in a batch of a shape."""
        return gathered(rows, self.at(shape, reads_of(rows[0].jump)))

    @torch.no_grad()
    def step(self, rows: Sequence[Row], shape: int, *, alone: bool = False) -> float:
        """One pass of the network for rows of this model, in a batch of a shape; the seconds of the pass itself.

        A row that is `alone`, nobody waits for a place nor looks at its states, may take all of its passes at once.
        """
        crowd = self.gather(rows, shape)
        with autocast(self.model.bf16, self.device):
            spent = crowd.solve() if alone and shape == 1 else None
            return crowd.step() if spent is None else spent

    @torch.no_grad()
    def score(self, given: Given, number: int, tokens: Tensor, seed: int, h: float) -> float:
        """How unlikely a finished row [1, L] is between its first gap and its last literal (`samples.lengths`)."""
        bound = bound_of(self.model.velocity.spec)
        assert bound is not None  # a request for several lengths is refused where there is none
        with autocast(self.model.bf16, self.device):
            return float(bounds(self.model.velocity, bound, given, torch.tensor([number]), tokens, seed, h))

    def steady(self) -> bool:
        """Has a text the same bits alone or in a crowd? Looks whether the network rounds alike at all places.

        With one shape of batches, a row that is moved to the next place must come out the same; with several, a row
        must come out as it does alone, in each of them and at each of their places.
        """
        if not self.found:
            several = len(self.shapes) > 1
            self.found.append((self.by_row and self.as_alone()) if several else self.at_any_place())
        return self.found[0]

    def at_any_place(self) -> bool:
        """Does a row round alike at all places of a batch?"""
        rows = [*range(self.shapes[0])]
        return torch.equal(self.looked_at(rows), self.looked_at([*rows[1:], 0]).roll(1, 0))

    def as_alone(self) -> bool:
        """Does a row round in batches of every shape as it does alone?"""
        alone = torch.cat([self.looked_at([row]) for row in range(max(self.shapes))])
        return all(torch.equal(alone[:shape], self.looked_at(range(shape))) for shape in self.shapes if shape > 1)

    @torch.no_grad()
    def looked_at(self, numbers: Sequence[int]) -> Tensor:
        """Logits [B, …] at some places of random rows of these numbers, by a batch of so many."""
        spec, rows = self.model.velocity.spec, len(numbers)
        noise = RowNoise(0, torch.tensor(numbers, device=self.device))
        x = (noise.uniform((rows, spec.length)) * spec.vocab).long()
        t, h = noise.uniform((rows,)).float(), noise.uniform((rows,)).float()
        places = torch.arange(spec.length * rows, device=self.device).view(rows, -1)[:, :64]
        with autocast(self.model.bf16, self.device):
            read = self.at(rows).look(x, t, h)
            parts = [read(part) for part in (places if self.by_row else [places.flatten()])]
        return torch.cat(parts).reshape(rows, -1)

    def warm(self) -> None:
        """Run every shape as often as it takes to compile and record it; a text by itself with and without a prompt."""
        spec, dials = self.model.velocity.spec, (self.defaults.temperature, 1.0)
        none = torch.zeros(1, spec.length, dtype=torch.int64)
        held = (torch.arange(spec.length) == 0)[None]
        prompts = (None, Given(held, none, none))
        for shape in self.shapes:
            for _ in range(3 if self.device.type == "cuda" else 1):
                self.step(self.begin([Start(n, 0, 1, dials) for n in range(shape)]), shape)
                for given in prompts if shape == 1 else ():
                    start = Start(0, 0, self.defaults.steps, dials, given=given)
                    self.step(self.begin([start]), 1, alone=True)


def joined_given(parts: Sequence[Given | None], length: int, device: torch.device) -> Given | None:
    """What is given of some rows, [1, L] each, as one [B, L] on a device; none where nothing is given of any."""
    if all(part is None for part in parts):
        return None
    none = torch.zeros(1, length, dtype=torch.int64)
    nothing = Given(none.bool(), none, none)
    rows = [part or nothing for part in parts]
    return Given(*(torch.cat([getattr(row, n) for row in rows]).to(device) for n in ("held", "tokens", "sides")))


def load_served(
    path: Path,
    device: str,
    *,
    name: str,
    quick: str = "auto",
    compass: Path | None = None,
    rows: int | None = None,
    shapes: Sequence[int] = (),
) -> Served:
    """A model for a device, in batches as `fitted` has them."""
    model = ready(load(path, device), quick)
    found = compass or own_compass(path)
    energy = compass_for(found, model.velocity, f"the model {name}") if found else None
    most = 1 if model.velocity.device.type == "cpu" else rows or min(ROWS, model.batch_size(whole=False))
    return fitted(Served(name, model, defaults_of(path), energy, tuple(sorted(set(shapes)))), most)


def fitted(served: Served, rows: int) -> Served:
    """The same with its batches, where it names no shapes: on a GPU powers of two up to `rows`.

    On a CPU they have up to four rows, if a row of them has the bits that it has alone, and one row otherwise.
    """
    if served.device.type != "cpu":
        return served if served.shapes else replace(served, shapes=powers(rows))
    if served.shapes == (1,):
        return served
    velocity = served.model.velocity
    model = ready(replace(served.model, velocity=replace(velocity, net=row_by_row(velocity.net))), served.model.quick)
    batches = replace(served, model=model, shapes=served.shapes or TOGETHER, by_row=True, passes={}, found=[])
    if batches.steady():
        return batches
    return served if served.shapes else replace(served, shapes=(1,))


def powers(rows: int) -> tuple[int, ...]:
    """The powers of two up to the first that holds so many rows."""
    return tuple(1 << k for k in range((rows - 1).bit_length() + 1))


def ready(model: TextModel, quick: str) -> TextModel:
    """A model for many batch sizes; on a GPU it keeps no weights but those its products take."""
    velocity = model.velocity
    if model.bf16 and velocity.device.type == "cuda":
        velocity = replace(velocity, net=settled(lean(velocity, model.bf16).net))
    made = replace(model, velocity=velocity, quick=quick)
    made.passes.sizes = "any"
    return made


def usual_rows(models: Sequence[Served]) -> int:
    """Texts in the running batch of a device, where nothing else was asked for."""
    return FEW if models[0].device.type == "cpu" else max(max(served.shapes) for served in models)


def names_of(paths: Sequence[Path]) -> list[str]:
    """What models are called: a shipped one by its name, others by their folder."""
    names = [path.resolve().name if path.exists() else path.as_posix() for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two models are called {name}: rename the folder of one of them")
    return names
