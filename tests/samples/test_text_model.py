"""A model that writes: the same text alone and in a batch, what is given stays, and the passes are counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_nets import save_run, tiny_spec, tiny_velocity

import tsdfm
from tsdfm.errors import UserError
from tsdfm.flow import CumulativeJump, EulerJump
from tsdfm.samples.model import TextModel
from tsdfm.tokens.tokenizer import ByteTokenizer

BYTES = ByteTokenizer()
END = BYTES.end_of_text
every_source = pytest.mark.parametrize("source", ["uniform", "mask"])


def tiny_model(**spec: Any) -> TextModel:
    return TextModel(tiny_velocity(tiny_spec(**spec)), BYTES, "teacher")


@every_source
@pytest.mark.parametrize("step_size", [False, True])
def test_a_text_does_not_know_its_batch(source: str, step_size: bool) -> None:
    """In float64 the network's last bits, which may differ with the batch, are far below what a draw can notice."""
    model = tiny_model(source=source, step_size=step_size)
    whole = model.sample(n=7, steps=5, seed=3)
    for batch in (1, 2, 3, 7, 100):
        assert torch.equal(model.sample(n=7, steps=5, seed=3, batch=batch).tokens, whole.tokens)
    for i in (0, 4, 6):
        alone = model.sample(n=1, steps=5, seed=3, first=i)
        assert torch.equal(alone.tokens[0], whole.tokens[i])
        assert alone.texts == whole.texts[i : i + 1]
    assert model.sample(n=3, steps=5, seed=3, first=2, batch=2).texts == whole.texts[2:5]


@every_source
def test_texts_differ_with_number_and_seed(source: str) -> None:
    model = tiny_model(source=source)
    texts = [text for seed in range(4) for text in model.sample(n=8, steps=3, seed=seed).texts]
    assert len(set(texts)) == len(texts)


def test_the_global_generator_does_not_matter() -> None:
    model = tiny_model()
    first = model.sample(n=2, steps=3)
    torch.manual_seed(99)
    state = torch.get_rng_state()
    assert torch.equal(model.sample(n=2, steps=3).tokens, first.tokens)
    assert torch.equal(torch.get_rng_state(), state)


@every_source
@pytest.mark.parametrize("jump", ["euler", "cumulative"])
@pytest.mark.parametrize("steps", [1, 6])
def test_what_is_given_stays(source: str, jump: str, steps: int) -> None:
    model = tiny_model(source=source)
    made = model.sample(n=4, steps=steps, seed=1, jump=jump)
    assert (made.tokens[:, 0] == END).all()  # the anchor is given, always
    begun = model.sample(n=4, steps=steps, seed=1, jump=jump, prefix="Mia has")
    assert begun.tokens[:, :8].tolist() == [[END, *b"Mia has"]] * 4
    assert all(text.startswith("Mia has") for text in begun.texts)
    assert len({tuple(row) for row in begun.tokens[:, 8:].tolist()}) == 4  # and the rest is written
    filled = model.sample(n=4, steps=steps, seed=1, jump=jump, infill="A{3}B{2}C")
    for row in filled.tokens.tolist():
        assert (row[0], row[1], row[5], row[8]) == (END, *b"ABC")


@pytest.mark.parametrize("jump", ["euler", "cumulative"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_mask_survives(jump: str, temperature: float) -> None:
    model = tiny_model(source="mask", anchor=0)
    for steps in (1, 2, 9):
        tokens = model.sample(n=6, steps=steps, jump=jump, temperature=temperature, top_p=0.9).tokens
        assert tokens.shape == (6, 20)
        assert ((tokens >= 0) & (tokens < 257)).all()


@pytest.mark.parametrize("steps", [1, 4, 11])
def test_passes_are_counted(steps: int) -> None:
    model, calls = tiny_model(), []
    model.velocity.net.norm.register_forward_hook(lambda *_: calls.append(1))  # the last part of a pass's body
    assert model.sample(n=3, steps=steps).nfe == steps == len(calls)
    calls.clear()
    assert model.sample(n=3, steps=steps, batch=1).nfe == steps  # of each text
    assert len(calls) == 3 * steps


def test_a_grid_of_times() -> None:
    model = tiny_model()
    even = model.sample(n=2, times=(0.0, 0.25, 0.5, 0.75, 1.0))
    assert even.nfe == 4
    assert torch.equal(even.tokens, model.sample(n=2, steps=4).tokens)
    assert not torch.equal(even.tokens, model.sample(n=2, times=(0.0, 0.8, 0.9, 0.95, 1.0)).tokens)
    with pytest.raises(UserError, match="starts at 0"):
        model.sample(times=(0.1, 1.0))


@pytest.mark.parametrize(("spec", "ends"), [({"anchor": 1}, False), ({"anchor": 0}, True)])
def test_where_a_row_is_one_text_no_end_is_among_the_noise(spec: dict[str, int], ends: bool) -> None:
    model = tiny_model(source="uniform", **spec)
    anchor = model.velocity.spec.anchor
    made = model.sample(n=300, steps=1, seed=1, trajectory=True).trajectory
    assert made is not None
    begun = torch.tensor([next(iter(row.states()))[0] for row in made.rows])
    assert bool((begun[:, anchor:] == END).any()) == ends
    assert tiny_model(source="mask", **spec).never_noise is None


def test_progress_is_told() -> None:
    seen: list[tuple[int, int]] = []
    tiny_model().sample(n=5, steps=1, batch=2, on_batch=lambda done, of: seen.append((done, of)))
    assert seen == [(2, 5), (4, 5), (5, 5)]


def test_the_jump_by_default() -> None:
    assert isinstance(tiny_model().jump("auto"), EulerJump)
    assert isinstance(tiny_model(step_size=True).jump("auto"), CumulativeJump)
    assert isinstance(tiny_model().jump("cumulative"), CumulativeJump)
    with pytest.raises(UserError, match="unknown jump"):
        tiny_model().sample(jump="leap")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"n": 0}, "number of samples must be at least 1"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"batch": -2}, "batch must be at least 1"),
        ({"steps": 0}, "at least 1"),
        ({"prefix": "x" * 20}, "prefix has 20 tokens, the model writes 19"),
        ({"prefix": "a", "infill": "{1}"}, "either a prefix or an infill"),
    ],
)
def test_what_makes_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        tiny_model().sample(**given)


def test_a_broken_network_is_noticed() -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.velocity.net.head.bias[3:4].detach(), float("nan"))
    with pytest.raises(UserError, match="not numbers"):
        model.sample()


def test_texts() -> None:
    one, packed = tiny_model(), tiny_model(anchor=0)
    row = torch.tensor([[END, *b"Hi", END, *b"you", END, END]])
    assert one.texts(row) == ["Hi ¶ you"]  # an end inside a row of one document is a fault, and shows
    assert packed.texts(row[:, 1:]) == ["Hi\n\nyou\n\n\n\n"]
    assert one.texts(torch.full((1, 4), END)) == [""]
    assert one.texts(torch.tensor([[END, 0xC3, 0x28]])) == ["\N{REPLACEMENT CHARACTER}("]


def test_batches_fit_the_memory() -> None:
    assert tiny_model().batch_size() == 256
    large = tiny_model(length=4096)
    assert large.batch_size() == 2**26 // (4096 * 257)
    assert tiny_model(length=2**20).batch_size() == 1


def test_load_and_sample(tmp_path: Path) -> None:
    nets = save_run(tmp_path / "run", tiny_spec(), steps=(1, 2))
    model = tsdfm.load(tmp_path / "run", "cpu")
    assert model.method == "teacher"
    assert torch.equal(model.velocity.net.head.weight, nets[102].head.weight)
    texts = model.sample(n=2, steps=3, prefix="Mia").texts
    newest = tmp_path / "run" / "checkpoints" / "step-00000002"
    assert tsdfm.load(str(newest), "cpu").sample(n=2, steps=3, prefix="Mia").texts == texts
    plain = tsdfm.load(tmp_path / "run", "cpu", which="model")
    assert torch.equal(plain.velocity.net.head.weight, nets[2].head.weight)
    with pytest.raises(UserError, match="'ema' or 'model'"):
        tsdfm.load(tmp_path / "run", "cpu", which="both")


def test_load_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no checkpoint or run"):
        tsdfm.load(tmp_path / "nowhere", "cpu")
    save_run(tmp_path / "other", tiny_spec(tokenizer="0" * 64))
    with pytest.raises(UserError, match=r"not the one .* was trained with"):
        tsdfm.load(tmp_path / "other", "cpu")
    save_run(tmp_path / "bare", tiny_spec())
    (tmp_path / "bare" / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"no tokenizer\.json"):
        tsdfm.load(tmp_path / "bare", "cpu")
    save_run(tmp_path / "cut", tiny_spec())
    weights = tmp_path / "cut" / "checkpoints" / "step-00000001" / "ema.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(UserError, match="is damaged"):
        tsdfm.load(tmp_path / "cut", "cpu")


@every_source
def test_a_late_grid_is_a_jump_by_its_name(source: str) -> None:
    model = tiny_model(source=source)
    late = model.sample(n=3, steps=4, seed=1, jump="late:2")
    plain = {"uniform": "cumulative", "mask": "ancestral"}[source]
    assert late.nfe == 4
    assert late.texts == model.sample(n=3, seed=1, jump=plain, times=(0.0, 0.4375, 0.75, 0.9375, 1.0)).texts
    assert late.texts != model.sample(n=3, steps=4, seed=1, jump=plain).texts
