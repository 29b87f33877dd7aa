"""What `tsdfm.load` returns: a trained model that writes text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tsdfm.distil.midpoint import Energy
from tsdfm.distil.stats import Stats
from tsdfm.engine.distributed import pick_device
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.errors import UserError
from tsdfm.flow import (
    ClassifierFree,
    Jump,
    Model,
    RowNoise,
    Solution,
    Steps,
    check_grid,
    mean_passes,
    reads_of,
    reads_some,
    solve,
    steps_of,
)
from tsdfm.methods import bound_of
from tsdfm.nn.bound import EVAL_STREAM, bound_rows
from tsdfm.nn.velocity import Velocity, check_rows, load_velocity, run_folder
from tsdfm.public.model import is_public, load_public
from tsdfm.samples.given import Asked, Given, as_prompts, named, read_asked, several
from tsdfm.samples.guide import Guide
from tsdfm.samples.lengths import TIMES, likeliest
from tsdfm.samples.limits import check_amount
from tsdfm.samples.quick import Quick, by_logits, fitting, free_bytes, row_bytes
from tsdfm.samples.trajectory import Recorder, Row, Trajectory, even, pieces_of
from tsdfm.samples.windows import Page, Told, windows_of, writing
from tsdfm.samples.written import Moment, Samples
from tsdfm.store.bundle import find_member
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import TokenRows
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer


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
        object.__setattr__(self, "passes", Quick(self.velocity, self.quick, self.bf16))

    @property
    def never_noise(self) -> int | None:
        """The token that no text begins with as noise: the end of a text where a row is one text; none elsewhere.

        At t = 0 a state says nothing of its text, so any law of it is as good. But a network that is smooth in time
        takes an end for the text's own there, as it is right a little later, and ends the text around it.
        """
        alone = self.velocity.spec.anchor > 0 and self.velocity.source.mask is None
        return self.tokenizer.end_of_text if alone else None

    def sample(
        self,
        n: int = 1,
        steps: int = 16,
        seed: int = 0,
        *,
        prefix: str | Sequence[str] | None = None,
        prompts: str | Sequence[str] | None = None,
        infill: str | Sequence[str] | None = None,
        given: Given | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        jump: str = "auto",
        times: tuple[float, ...] | None = None,
        batch: int | None = None,
        first: int = 0,
        length: int | None = None,
        stride: int | None = None,
        trajectory: bool = False,
        on_batch: Callable[[int, int], None] | None = None,
        on_pass: Callable[[Moment], None] | None = None,
        guide: Guide | None = None,
        compass: Energy | None = None,
        bias: Tensor | None = None,
        long: bool = False,
        cfg: float = 0.0,
    ) -> Samples:
        """Write `n` texts in `steps` network passes each (or along the grid `times`, in the place of the jump's own).

        `prefix` is kept as it is; `prompts` is another word for it, but that a model which learned answers has a
        newline at the end of a prompt. `infill` is a template with gaps, such as
        `"Mia has {2} balls."`: `{2}` is two tokens long, and of `{1-4}` the model chooses the length, for some passes
        more, which `nfe` counts (`samples.lengths`). Any of them may be a list: then `n` texts are written for each, in
        order, and text j of the p-th has the number p·n + j. `given` says it in tokens instead: of text i its row i.

        `length` asks for texts of more tokens than the model has, its anchor counted: they are written in windows that
        move on by `stride` tokens (none: half of the model's) and each take `steps` passes (`samples.windows`).

        The random numbers of text i depend on the seed and on i alone; `first` numbers the first text, so that a long
        list can be made in parts. In batches of another size floating-point products round differently, and a draw on
        the border between two tokens may then fall on the other side.

        `jump` is `auto` (what the model's method writes by), one of `flow.JUMPS`, or one that a method brings. `guide`
        navigates every step by a compass. A `trajectory` holds the energy of every state under `compass`, or under the
        guide's; the scoring that takes is counted neither in `nfe` nor in `compass_calls`. `bias` [V] is added to the
        logits of every position, before temperature and top-p. `cfg` is the strength of classifier-free guidance by
        what is given, for models of the mask source: two passes a step (`flow.guidance`). `on_pass` is told the texts
        after every pass, `on_batch` how many texts of how many are finished. What would take more than a day is refused
        unless it is `long`.
        """
        if n < 1:
            raise UserError(f"the number of samples must be at least 1, not {n}")
        if guide is not None and not isinstance(guide, Guide):
            raise UserError(f"guide is a Guide, which tsdfm.samples.guide.guide_from makes, not {guide!r}")
        if prefix is not None and prompts is not None:
            raise UserError("prompts is another word for prefix: give one of the two")
        spec = self.velocity.spec
        asked_for = as_prompts(several(prompts, "prompts"), spec.prompted)
        prefixes, infills = asked_for or several(prefix, "prefixes"), several(infill, "templates")
        texts, count = n * max(1, len(prefixes) + len(infills)), steps if times is None else len(times) - 1
        check_amount(spec, self.velocity.device.type, texts, count, states=trajectory, long=long)
        plain = self.jump(jump)
        path = steps_of(plain, steps) if times is None else check_grid(times)
        windows = windows_of(spec, length, stride)
        reach = spec.length if length is None else length
        if given is None:
            word = "prompt" if spec.prompted else "prefix"
            asked = read_asked(
                self.tokenizer, reach, spec.anchor, n, first, prefixes=prefixes, infills=infills, word=word
            )
        elif len(given.held) != n:
            raise UserError(f"{len(given.held)} rows are given for {n} texts: give one for each")
        else:
            asked = Asked(torch.arange(first, first + n), torch.arange(n), given)
        if spec.prompted and asked.given is not None and bool((full := asked.given.held.all(1)).any()):
            one = named("prompt", prefixes[int(full.int().argmax())], prefixes) if prefixes else "template"
            raise UserError(f"the {one} fills all {reach} tokens of a row: no room is left for its answer, shorten it")
        if reach > spec.length:
            self._only_plain(gaps=asked.texts < len(asked.numbers), compass=compass is not None, cfg=bool(cfg))
        if on_pass is not None and asked.texts < len(asked.numbers):
            raise UserError("texts with a gap of several lengths are chosen at the end: to watch them, give one length")
        bound = bound_of(spec)
        if bound is None and asked.texts < len(asked.numbers):
            raise UserError(f"a model of {spec.method} has no bound to choose a gap's length by: give one length")
        count = len(asked.numbers)
        stats = None if guide is None else Stats(guide.settings.k)
        size = self._rows(count, batch, trajectory or guide is not None or not reads_some(plain), guide)
        rows, parts = list[Row](), list[Solution]()
        scorer = compass or (guide.compass if guide and reach == spec.length else None)
        windows = writing(windows, asked.given)
        most = (len(path) + plain.final_pass) * (2 if cfg else 1)  # passes of a window
        model = self.passes.model(size, most * len(windows) * -(-count // size), reads_of(plain))
        begin = time.perf_counter()
        for start in range(0, count, size):
            numbers = asked.numbers[start : start + size].to(self.velocity.device)
            known = asked.rows(slice(start, start + size), self.velocity.device)
            page = Page.begin(windows, reach, self.velocity.source, numbers, seed, known, self.never_noise)
            around = partial(guide.around, plain, stats=stats, learned=spec.prompted) if guide and stats else None
            jumps = around or (lambda held: plain)
            recorder = Recorder(scorer.energy if scorer else None) if trajectory else None
            guided = self._free(model, cfg, known) if cfg else model
            told = page.told(self._told(on_pass, numbers, most * len(windows)), recorder, most)
            shaped = {"temperature": temperature, "top_p": top_p, "bias": bias}
            parts.append(self._write(guided, page, path, jumps, told, shaped))
            rows += recorder.rows(known.held.cpu() if known else None) if recorder else []
            if on_batch is not None:
                on_batch(min(count, start + size), count)
        tokens, passes = torch.cat([part.tokens for part in parts]), torch.cat([part.passes for part in parts])
        way_nfe = mean_passes(passes)
        if asked.texts < count and bound is not None:  # gaps of several lengths
            with autocast(self.bf16, self.velocity.device):
                kept = likeliest(self.velocity, bound, asked, tokens, seed, path[0][1], size)
            tokens, rows = tokens[kept], [rows[row] for row in kept] if rows else []
            text = torch.unique_consecutive(asked.numbers, return_inverse=True)[1]
            passes = torch.zeros(asked.texts, dtype=torch.int64).index_add_(0, text, passes + TIMES)
        seconds = time.perf_counter() - begin
        way = self._trajectory(rows, way_nfe, seed, guide, scorer) if trajectory else None
        return Samples(
            texts=self.texts(tokens),
            tokens=tokens,
            nfe=mean_passes(passes),
            seconds=seconds,
            passes=passes.tolist(),
            trajectory=way,
            compass_calls=stats.scored / len(tokens) if stats else 0.0,
            navigation=stats.summary() if stats else {},
            seed=seed,
            first=first,
            prefix=[text for text in prefixes for _ in range(n)] or None,
            infill=[text for text in infills for _ in range(n)] or None,
        )

    def _rows(self, n: int, batch: int | None, whole: bool, guide: Guide | None) -> int:
        """Texts at a time: as asked for, or as many as fit, shared out so that no batch is much smaller than others.

        `whole`: all logits of a step are wanted at once.

        A guide that compares entropies within the batch makes a text depend on it: its batch must not follow from how
        much memory happens to be free.
        """
        if batch is not None and batch < 1:
            raise UserError(f"the batch must be at least 1, not {batch}")
        if batch is None and guide is not None and guide.settings.entropy == "batch":
            batch = by_logits(self.velocity.spec, self.velocity.device)
        if batch is not None:
            return min(n, batch)
        fits = self.batch_size(whole=whole, states=guide.settings.k if guide else 1)
        return -(-n // -(-n // fits))

    def _only_plain(self, **asked: bool) -> None:
        """Refuse what works on texts of the model's own length alone."""
        words = {"gaps": "gaps of several lengths", "compass": "the energies of a compass", "cfg": "cfg"}
        for name in (name for name, wanted in asked.items() if wanted):
            tokens = self.velocity.spec.length
            raise UserError(f"{words[name]}: for texts of the model's {tokens} tokens alone, leave out the length")

    def _write(
        self,
        model: Model,
        page: Page,
        path: Steps,
        jumps: Callable[[Tensor | None], Jump],
        told: Sequence[Told],
        shaped: Mapping[str, Any],
    ) -> Solution:
        """Write the texts of a page, window by window. `jumps` makes the jump for positions that are held."""
        passes = torch.zeros(len(page.state), dtype=torch.int64)
        for window, noise, (on_step, on_state) in zip(page.windows, page.noises, told, strict=True):
            known = window.known(page.state, page.given)
            with autocast(self.bf16, self.velocity.device):
                made = solve(
                    model,
                    page.state[:, window.columns],
                    path,
                    jumps(known.held if known else None),
                    noise,
                    given=known.held if known else None,
                    given_tokens=known.tokens if known else None,
                    limits=known.limits(self.tokenizer) if known else None,
                    on_step=on_step,
                    on_state=on_state,
                    **shaped,
                )
            page.state, passes = page.whole(window, made.tokens), passes + made.passes
        return Solution(tokens=page.state.cpu(), passes=passes)

    def _free(self, model: Model, cfg: float, given: Given | None) -> ClassifierFree:
        """The model with classifier-free guidance: its second pass sees the rows' anchors, as in training, no more."""
        anchor, held = self.velocity.spec.anchor, None if given is None else given.held.clone()
        if held is None or not bool(held[:, anchor:].any()):
            raise UserError("classifier-free guidance follows what is given: give a prefix or an infill template")
        held[:, :anchor] = False
        return ClassifierFree(model, cfg, held, self.velocity.source)

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

    def bound(self, tokens: str | Path, rows: int = 64, times: int = 8, seed: int = 0, *, h: float = 0.0) -> Tensor:
        """An upper bound of −log p(text) of held-out rows of a tokens folder: nats per token [rows], float64.

        It is the bound of the model's own method (`methods.bound_of`), from `times` draws of t for each row; rows are
        spread evenly over the split. A network that is told its step size is told `h`.

        Example: `tsdfm.load("runs/demo/teacher-uniform").bound("runs/demo/tokens").mean()`
        """
        spec, device, found = self.velocity.spec, self.velocity.device, bound_of(self.velocity.spec)
        if found is None:
            raise UserError(f"a model of {spec.method} has no bound: measure its texts")
        if rows < 1:
            raise UserError(f"a bound needs at least one row, not {rows}")
        held = TokenRows(Path(tokens), "valid")
        check_rows(spec, held, "the model")
        count, size, nats = min(rows, len(held)), self.batch_size(), []
        chosen = [i * len(held) // count for i in range(count)]
        for part in (chosen[at : at + size] for at in range(0, count, size)):
            x_1 = torch.from_numpy(held.take(part).astype("int64")).to(device)
            given = torch.from_numpy(held.given(part)).to(device)
            noise = RowNoise(seed, torch.tensor(part, device=device), stream=EVAL_STREAM)
            nats.append(bound_rows(self.velocity.net, spec, found, x_1, given, noise, times, h))
        return torch.cat(nats)

    def jump(self, name: str) -> Jump:
        """A jump by its name: `auto`, one of `flow.JUMPS`, or one that a method brings."""
        return self.velocity.jump(name)

    def batch_size(self, *, whole: bool = True, states: int = 1) -> int:
        """Texts of one call: what fits into half of a GPU's free memory, or logits of a quarter of a gigabyte on a CPU.

        `whole`: all logits of a step are wanted at once; `states`: how many a guide scores for each text.
        """
        spec, device = self.velocity.spec, self.velocity.device
        if device.type == "cuda":
            return fitting(free_bytes(device), row_bytes(spec, whole=whole, states=states), spec.length)
        return by_logits(spec, device)

    def push_to_hub(self, name: str) -> None:
        """Upload the model to the hub as OWNER/NAME: weights, config, tokenizer and a card, as `tsdfm export` does."""
        from tsdfm.samples.hub import push_model

        push_model(self.velocity, self.tokenizer, name)

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
        self, rows: list[Row], nfe: float, seed: int, guide: Guide | None, scorer: Energy | None
    ) -> Trajectory:
        rows = even(rows)
        return Trajectory(
            method=self.method,
            source=self.velocity.spec.source,
            steps=len(rows[0].steps),
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
    path: str | Path,
    device: str = "auto",
    *,
    which: str = "ema",
    choose: str = "newest",
    precision: str = "auto",
    **words: Any,
) -> TextModel:
    """A model from a run folder, one of its checkpoints, a bundle or a public checkpoint, ready to sample.

    A public checkpoint is a file, a folder or OWNER/NAME of the hub, and has `words` of its own, those of
    `public.model.read_public`: revision, part, kind, heads, tokenizer, …
    `tsdfm-stories` is the student that came with tsdfm, `tsdfm-stories/teacher` its teacher.
    """
    place = pick_device(device)
    if is_public(path):
        return TextModel(*load_public(path, place, **words), use_bf16(precision, place))
    if words:
        raise UserError(f"{path} is no public checkpoint, which alone has a {next(iter(words))}: leave it out")
    velocity = load_velocity(Path(path), place, which=which, choose=choose)
    checkpoint, shipped = velocity.checkpoint or Path(path), find_member(Path(path), "student")
    homes = (checkpoint / "tokenizer", (shipped.bundle.folder if shipped else run_folder(checkpoint)) / "tokenizer")
    tokenizer = load_tokenizer(next((home for home in homes if home.is_dir()), homes[-1]))
    if tokenizer.fingerprint != velocity.spec.tokenizer:
        raise UserError(f"the tokenizer in {homes[-1]} is not the one {path} was trained with: restore the right one")
    method = str((shipped.about if shipped else read_manifest(checkpoint)).get("stage", "model"))
    return TextModel(velocity, tokenizer, method, use_bf16(precision, place))
