"""What `tsdfm.load` returns: a trained model that writes text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.distil.midpoint import Energy
from tsdfm.distil.stats import Stats
from tsdfm.engine.distributed import pick_device
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.errors import UserError
from tsdfm.flow import Jump, RowNoise, Solution, Step, check_grid, grid, reads_of, solve
from tsdfm.methods import jump_for
from tsdfm.nn.velocity import Velocity, load_velocity, run_folder
from tsdfm.public.model import is_public, load_public
from tsdfm.samples.given import Given, read_asked, several
from tsdfm.samples.guide import Guide
from tsdfm.samples.lengths import TIMES, likeliest
from tsdfm.samples.quick import Pass, Quick, by_logits, fitting, free_bytes, row_bytes
from tsdfm.samples.trajectory import Recorder, Row, Trajectory, pieces_of
from tsdfm.store.bundle import find_member
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Finished texts. `tokens` [n, L]; `nfe` network passes each; `seconds` of generation for all of them.

    `first` is the number of the first one; `prefix` or `infill` of each text are there where they were asked for.
    A guided generation also has `compass_calls`, states the compass scored for each text, and what `navigation` did.
    """

    texts: list[str]
    tokens: Tensor
    nfe: int
    seconds: float
    trajectory: Trajectory | None = None
    compass_calls: float = 0.0
    navigation: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0
    first: int = 0
    prefix: list[str] | None = None
    infill: list[str] | None = None

    def records(self) -> list[dict[str, Any]]:
        """A record of each text, for JSON: its number, how it was made, what was given of it, and the text."""
        about, given = {"seed": self.seed, "nfe": self.nfe}, {"prefix": self.prefix, "infill": self.infill}
        return [
            {
                "index": self.first + i,
                **about,
                **{name: each[i] for name, each in given.items() if each is not None},
                "text": text,
                "tokens": row,
            }
            for i, (text, row) in enumerate(zip(self.texts, self.tokens.tolist(), strict=True))
        ]

    def plain(self) -> dict[str, Any]:
        """All of it for JSON, without the trajectory."""
        guided = {"compass_calls": self.compass_calls, "navigation": self.navigation} if self.navigation else {}
        return {"seed": self.seed, "nfe": self.nfe, "seconds": self.seconds, **guided, "texts": self.records()}


@dataclass(frozen=True, kw_only=True)
class Moment:
    """Texts that are being written, after `passes` of `of` network passes, at time `t`; a batch of them.

    `numbers` are the texts' own, `tokens` [B, L] their state, and `texts` how that reads, U+FFFD for [MASK].
    """

    passes: int
    of: int
    t: float
    numbers: list[int]
    tokens: Tensor
    texts: list[str]


@dataclass(frozen=True)
class TextModel:
    """A velocity network with its tokenizer. `quick` is how it is run on a GPU: auto, compile or off (`samples.quick`).

    Example: `tsdfm.load("runs/demo/teacher-uniform").sample(n=4, steps=32, seed=0, prefix="Mia has").texts`
    """

    velocity: Velocity
    tokenizer: Tokenizer
    method: str
    bf16: bool = False
    quick: str = "auto"
    passes: Quick = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "passes", Quick(self.velocity, self.quick))

    def sample(
        self,
        n: int = 1,
        steps: int = 16,
        seed: int = 0,
        *,
        prefix: str | Sequence[str] | None = None,
        prompts: str | Sequence[str] | None = None,
        infill: str | Sequence[str] | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        jump: str = "auto",
        times: tuple[float, ...] | None = None,
        batch: int | None = None,
        first: int = 0,
        trajectory: bool = False,
        on_batch: Callable[[int, int], None] | None = None,
        on_pass: Callable[[Moment], None] | None = None,
        guide: Guide | None = None,
        compass: Energy | None = None,
        bias: Tensor | None = None,
    ) -> Samples:
        """Write `n` texts in `steps` network passes each (or along the grid `times`).

        `prefix` is kept as it is; `prompts` is another word for it. `infill` is a template with gaps, such as
        `"Mia has {2} balls."`: `{2}` is two tokens long, and of `{1-4}` the model chooses the length, for some passes
        more, which `nfe` counts (`samples.lengths`). Any of them may be a list: then `n` texts are written for each, in
        order, and text j of the p-th has the number p·n + j.

        The random numbers of text i depend on the seed and on i alone; `first` numbers the first text, so that a long
        list can be made in parts. In batches of another size floating-point products round differently, and a draw on
        the border between two tokens may then fall on the other side.

        `jump` is `auto` (what the model's method writes by), one of `flow.JUMPS`, or one that a method brings. `guide`
        navigates every step by a compass. A `trajectory` holds the energy of every state under `compass`, or under the
        guide's; the scoring that takes is counted neither in `nfe` nor in `compass_calls`. `bias` [V] is added to the
        logits of every position, before temperature and top-p. `on_pass` is told the texts after every pass,
        `on_batch` how many texts of how many are finished.
        """
        if n < 1:
            raise UserError(f"the number of samples must be at least 1, not {n}")
        points = grid(steps) if times is None else check_grid(times)
        if prefix is not None and prompts is not None:
            raise UserError("prompts is another word for prefix: give one of the two")
        prefixes, infills = several(prompts if prefix is None else prefix, "prefixes"), several(infill, "templates")
        spec = self.velocity.spec
        asked = read_asked(self.tokenizer, spec.length, spec.anchor, n, first, prefixes=prefixes, infills=infills)
        if on_pass is not None and asked.texts < len(asked.numbers):
            raise UserError("texts with a gap of several lengths are chosen at the end: to watch them, give one length")
        count = len(asked.numbers)
        size, rows, parts = self._rows(count, batch, trajectory, guide), list[Row](), list[Tensor]()
        plain, stats = self.jump(jump), None if guide is None else Stats(guide.settings.k)
        scorer = compass or (guide.compass if guide else None)
        model = self.passes.model(size, (len(points) - 1) * -(-count // size), reads_of(plain))
        begin = time.perf_counter()
        for start in range(0, count, size):
            numbers = asked.numbers[start : start + size].to(self.velocity.device)
            given = asked.rows(slice(start, start + size), self.velocity.device)
            taken = guide.around(plain, given.held if given else None, stats) if guide and stats else plain
            recorder = Recorder(scorer.energy if scorer else None) if trajectory else None
            told = self._told(on_pass, numbers, len(points) - 1 + taken.final_pass)
            made = self._solve(model, numbers, points, seed, given, temperature, top_p, bias, taken, recorder, told)
            parts.append(made.tokens.cpu())
            rows += recorder.rows(given.held.cpu() if given else None) if recorder else []
            if on_batch is not None:
                on_batch(min(count, start + size), count)
        tokens, nfe = torch.cat(parts), made.nfe
        if asked.texts < count:  # gaps of several lengths
            with autocast(self.bf16, self.velocity.device):
                kept = likeliest(self.velocity, asked, tokens, seed, points[1], size)
            tokens, rows = tokens[kept], [rows[row] for row in kept] if rows else []
            nfe = -(-count * (nfe + TIMES) // asked.texts)
        seconds = time.perf_counter() - begin
        way = self._trajectory(rows, len(points) - 1, made.nfe, seed, guide, scorer) if trajectory else None
        return Samples(
            texts=self.texts(tokens),
            tokens=tokens,
            nfe=nfe,
            seconds=seconds,
            trajectory=way,
            compass_calls=stats.scored / len(tokens) if stats else 0.0,
            navigation=stats.summary() if stats else {},
            seed=seed,
            first=first,
            prefix=[text for text in prefixes for _ in range(n)] or None,
            infill=[text for text in infills for _ in range(n)] or None,
        )

    def _rows(self, n: int, batch: int | None, trajectory: bool, guide: Guide | None) -> int:
        """Texts at a time: as asked for, or as many as fit, shared out so that no batch is much smaller than others.

        A guide that compares entropies within the batch makes a text depend on it: its batch must not follow from how
        much memory happens to be free.
        """
        if batch is not None and batch < 1:
            raise UserError(f"the batch must be at least 1, not {batch}")
        if batch is None and guide is not None and guide.settings.entropy == "batch":
            batch = by_logits(self.velocity.spec, self.velocity.device)
        if batch is not None:
            return min(n, batch)
        fits = self.batch_size(whole=trajectory or guide is not None, states=guide.settings.k if guide else 1)
        return -(-n // -(-n // fits))

    def _solve(
        self,
        model: Pass,
        numbers: Tensor,
        points: tuple[float, ...],
        seed: int,
        given: Given | None,
        temperature: float,
        top_p: float,
        bias: Tensor | None,
        jump: Jump,
        on_step: Callable[[Step], None] | None,
        on_state: Callable[[int, float, Tensor], None] | None,
    ) -> Solution:
        device, spec = self.velocity.device, self.velocity.spec
        noise = RowNoise(seed, numbers)
        x_0 = self.velocity.source.draw((len(numbers), spec.length), noise, device)
        with autocast(self.bf16, device):
            return solve(
                model,
                x_0,
                points,
                jump,
                noise,
                given=given.held if given else None,
                given_tokens=given.tokens if given else None,
                temperature=temperature,
                top_p=top_p,
                bias=bias,
                limits=given.limits(self.tokenizer) if given else None,
                on_step=on_step,
                on_state=on_state,
            )

    def _told(
        self, on_pass: Callable[[Moment], None] | None, numbers: Tensor, of: int
    ) -> Callable[[int, float, Tensor], None] | None:
        """`on_pass` as the solver calls it."""
        if on_pass is None:
            return None
        each: list[int] = numbers.tolist()

        def tell(passes: int, t: float, x: Tensor) -> None:
            tokens = x.cpu()
            on_pass(Moment(passes=passes, of=of, t=t, numbers=each, tokens=tokens, texts=self.texts(tokens)))

        return tell

    def jump(self, name: str) -> Jump:
        """A jump by its name: `auto`, one of `flow.JUMPS`, or one that a method brings."""
        return jump_for(name, self.velocity.spec)

    def batch_size(self, *, whole: bool = True, states: int = 1) -> int:
        """Texts of one call: what fits into half of a GPU's free memory, or logits of a quarter of a gigabyte on a CPU.

        `whole`: all logits of a step are wanted at once; `states`: how many a guide scores for each text.
        """
        spec, device = self.velocity.spec, self.velocity.device
        if device.type == "cuda":
            return fitting(free_bytes(device), row_bytes(spec, whole=whole, states=states), spec.length)
        return by_logits(spec, device)

    def texts(self, tokens: Tensor) -> list[str]:
        """The text of each row [n, L] after its anchor: up to the end where a row holds one document."""
        rows = tokens[:, self.velocity.spec.anchor :]
        return [self.text(row) for row in rows]

    def text(self, row: Tensor) -> str:
        """Padding at the end goes; any other end-of-text in a row of one document stays visible, as it is a fault."""
        end = self.tokenizer.end_of_text
        if self.velocity.spec.anchor == 0:
            return self.tokenizer.decode(row, end="\n\n")
        kept = row.tolist()
        while kept and kept[-1] == end:
            kept.pop()
        return self.tokenizer.decode(kept, end=" ¶ ")

    def _trajectory(
        self, rows: list[Row], steps: int, nfe: int, seed: int, guide: Guide | None, scorer: Energy | None
    ) -> Trajectory:
        return Trajectory(
            method=self.method,
            source=self.velocity.spec.source,
            steps=steps,
            nfe=nfe,
            seed=seed,
            vocab=self.velocity.spec.vocab,
            mask=self.velocity.source.mask,
            end_of_text=self.tokenizer.end_of_text,
            pieces=pieces_of(rows, self.tokenizer),
            rows=tuple(rows),
            guide=guide.policy if guide else None,
            compass=str(getattr(scorer, "sha256", "unnamed"))[:16] if scorer else None,
        )


def load(
    path: str | Path, device: str = "auto", *, which: str = "ema", choose: str = "newest", precision: str = "auto"
) -> TextModel:
    """A model from a run folder, one of its checkpoints, a bundle or a public checkpoint, ready to sample.

    A public checkpoint is a file, a folder or OWNER/NAME of the hub (`public.model.read_public`).
    `tsdfm-small` is the student that came with tsdfm, `tsdfm-small/teacher` its teacher.
    """
    place = pick_device(device)
    if is_public(path):
        return TextModel(*load_public(path, place), use_bf16(precision, place))
    velocity = load_velocity(Path(path), place, which=which, choose=choose)
    checkpoint, shipped = velocity.checkpoint or Path(path), find_member(Path(path), "student")
    homes = (checkpoint / "tokenizer", (shipped.bundle.folder if shipped else run_folder(checkpoint)) / "tokenizer")
    tokenizer = load_tokenizer(next((home for home in homes if home.is_dir()), homes[-1]))
    if tokenizer.fingerprint != velocity.spec.tokenizer:
        raise UserError(f"the tokenizer in {homes[-1]} is not the one {path} was trained with: restore the right one")
    method = str((shipped.about if shipped else read_manifest(checkpoint)).get("stage", "model"))
    return TextModel(velocity, tokenizer, method, use_bf16(precision, place))
