"""`tsdfm sample`: write texts, print them, and keep them if asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tsdfm.distil.settings import NavigateSettings
from tsdfm.errors import UserError
from tsdfm.samples.defaults import manner_of
from tsdfm.samples.given import as_prompts
from tsdfm.samples.guide import compass_for, guide_from
from tsdfm.samples.model import TextModel, load
from tsdfm.samples.prefixes import read_prefixes
from tsdfm.samples.settings import SampleSettings
from tsdfm.samples.trajectory import Trajectory
from tsdfm.samples.written import Moment, Samples
from tsdfm.store.bundle import default_model
from tsdfm.store.defaults import SampleDefaults
from tsdfm.store.files import write_text
from tsdfm.terminal import progress, visible


def show_texts(samples: Samples) -> None:
    """Print the texts, each under a line that says how to get it again; a terminal breaks lines between words."""
    console = Console()
    for number, (text, passes) in enumerate(zip(samples.texts, samples.passes, strict=True), samples.first):
        console.rule(f"text {number}, seed {samples.seed}, {passes} passes", align="left", style="dim")
        console.print(visible(text), markup=False, highlight=False, soft_wrap=not console.is_terminal)


def run(
    settings: SampleSettings,
    replay: Callable[[Trajectory, Console], None] | None = None,
    *,
    on_pass: Callable[[Moment], None] | None = None,
    show: Callable[[Samples], None] = show_texts,
) -> Samples:
    """Sample, show and save. `replay` plays the texts in the terminal before they are shown, `on_pass` as they come."""
    if settings.stream and settings.live:
        raise UserError("--stream shows the texts as they come, --live replays them after: choose one")
    if settings.compass is not None and settings.guide == "blind" and not settings.watched:
        raise UserError(
            "--compass guides nothing without --guide sequence, token or sequence-to-token, "
            "and scores nothing without --save-trajectory or --live"
        )
    if settings.guide == "blind" and replace(settings.navigate, blocks=0) != NavigateSettings():
        raise UserError("--navigate is for --guide sequence, token or sequence-to-token: name one, or leave it out")
    if settings.navigate.blocks and settings.guide in ("blind", "token"):
        raise UserError(f"--guide {settings.guide} chooses among no candidates: use sequence, or no --navigate.blocks")
    place = settings.model or default_model()
    model = load(place, settings.device, which=settings.weights, choose=settings.checkpoint)
    model = replace(model, quick=settings.quick)
    manner = manner_of(settings, place)
    samples = generate(model, settings, manner, place, on_pass)
    if settings.out is not None:
        write_texts(settings.out, samples)
    if settings.save_trajectory is not None and samples.trajectory is not None:
        samples.trajectory.save(settings.save_trajectory)
    if replay is not None and samples.trajectory is not None:
        replay(samples.trajectory, Console())
    show(samples)
    guided = f"{samples.compass_calls:.0f} compass calls a text, " if samples.navigation else ""
    speed = samples.tokens.numel() / samples.seconds
    number = len(samples.texts)
    each = "" if number == 1 else " each" if len({*samples.passes}) == 1 else " each on average"
    texts = f"{number} text{'s' if number != 1 else ''}, {samples.nfe:.4g} network passes{each}"
    work = f"{texts}, temperature {manner.temperature:g}, {guided}"
    Console(stderr=True).print(f"{work}{samples.seconds:.2f} s, {speed:,.0f} tokens/s")
    return samples


def generate(
    model: TextModel,
    settings: SampleSettings,
    manner: SampleDefaults,
    place: Path,
    on_pass: Callable[[Moment], None] | None = None,
) -> Samples:
    """The texts, with a progress bar on a terminal. What may be left to the model is taken from `manner`."""
    prompted = model.velocity.spec.prompted
    prefixes = [*as_prompts([text.replace("\\n", "\n") for text in settings.prompt], prompted), *settings.prefix]
    if settings.prefix_file is not None:
        prefixes += read_prefixes(settings.prefix_file, prompted)
    if prompted and not prefixes and not settings.infill:
        raise UserError("this model answers prompts: give it one by --prompt, or many by --prefix-file")
    if any(not text.strip() for text in settings.prompt):
        raise UserError("--prompt is empty: say what to answer")
    guide = guide_from(settings.guide, settings.compass, settings.navigate, model.velocity, place)
    scorer = None
    if settings.compass is not None and guide is None:
        scorer = compass_for(settings.compass, model.velocity, "the model to be scored")
    with progress(f"{manner.steps} passes", silent=on_pass is not None) as on_batch:
        return model.sample(
            manner.n,
            manner.steps,
            settings.seed,
            prefix=prefixes or None,
            infill=settings.infill or None,
            temperature=manner.temperature,
            top_p=settings.top_p,
            jump=manner.jump,
            cfg=settings.cfg,
            batch=settings.batch,
            length=settings.length,
            stride=settings.stride,
            long=settings.long,
            trajectory=settings.watched,
            on_batch=on_batch,
            on_pass=on_pass,
            guide=guide,
            compass=scorer,
        )


def write_texts(path: Path, samples: Samples) -> None:
    """A JSON object a line, in one atomic step."""
    write_text(path, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in samples.records()))
