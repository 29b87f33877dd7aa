"""From a public checkpoint to few-step students: our own MDLM and Duo, exported, imported, and distilled by recipe."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.public.public_files import write_public

import tsdfm
from training import many_step
from tsdfm.cli import main
from tsdfm.errors import UserError
from tsdfm.nn.velocity import load_velocity
from tsdfm.pipeline.plan import make_plan
from tsdfm.recipes import read_recipe

SOURCE = {"mdlm": "mask", "duo": "uniform"}
SMALL = [
    "corpus.name=world:small", "corpus.limit=120", "corpus.valid=0.1", "tokens.length=24", "tokens.workers=1",
    "compass.net.width=32", "compass.net.depth=1", "compass.net.heads=2", "compass.net.cond=16",
    "compass.corrupt.bins=4", "compass.eval_rows=8", "compass.loop.device=cpu", "compass.loop.compile=false",
    "compass.loop.steps=3", "compass.loop.batch=4", "compass.loop.micro=4", "compass.negatives=2",
    "validate.rows=8", "validate.times=2", "validate.pairs=4", "validate.candidate_rows=4", "validate.device=cpu",
    "student.loop.device=cpu", "student.loop.compile=false", "student.loop.steps=4", "student.loop.batch=8",
    "student.loop.micro=8", "student.eval_rows=8", "student.eval_times=2", "models.control.loop.steps=2",
    "models.ts-dfm.loop.steps=4", "measure.steps=[2]", "measure.teacher_steps=[2]", "measure.samples=4",
    'measure.world="small"', "measure.judges=[]", "measure.device=cpu", "report.tables=[]", "report.trajectories=0",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tsdfm.corpus.run import run as make_corpus
    from tsdfm.corpus.settings import CorpusSettings
    from tsdfm.tokens.run import run as make_tokens
    from tsdfm.tokens.settings import TokensSettings

    home = tmp_path_factory.mktemp("stories")
    made = make_corpus(CorpusSettings(out=home / "corpus", name="world:small", limit=120, valid=0.1))
    settings = TokensSettings(corpus=made, out=home / "tokens", vocab_size=300, length=24, workers=1)
    return make_tokens(settings)


@pytest.mark.parametrize("name", SOURCE)
def test_an_imported_model_is_distilled(
    name: str, tokens: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    many_step(name, tokens, tmp_path / "own", steps=4)
    assert main(["export", "own", "--to", "public"]) == 0
    assert main(["import", "public", "--out", "teacher"]) == 0
    words = [word for pair in SMALL for word in ("--set", pair)]
    words += ["--set", "models.teacher.use=teacher", "--set", "tokens.tokenizer_files=teacher"]
    assert main(["pipeline", f"distil_{name}", "--out", "few", *words]) == 0
    teacher = load_velocity("teacher").spec
    for student in ("fs-dfm", "control", "ts-dfm"):
        run = Path("few") / f"{student}-{SOURCE[name]}"
        spec = load_velocity(run).spec
        assert (spec.step_size, spec.jump) == (True, "cumulative")
        assert (spec.time, spec.clock, spec.logits) == (teacher.time, teacher.clock, teacher.logits)
        found = tsdfm.load(run, "cpu").sample(n=2, steps=2, seed=0).tokens
        assert found.shape == (2, 24)
        assert int(found.max()) < teacher.vocab
    rows = json.loads(Path("few/report/metrics.json").read_text())
    assert "ts-dfm" in json.dumps(rows)
    Path("words.md").write_text("# Mine\n\nFor tests.")
    words = ["--to", "out", "--card", "words.md", "--licence", "mit"]
    assert main(["export", f"few/ts-dfm-{SOURCE[name]}", *words]) == 0
    card = Path("out/README.md").read_text()
    assert card.startswith("---\nlicense: mit\n")
    began = f"Trained with tsdfm, beginning with public (layout {name})."  # TS-DFM from FS-DFM from the imported model
    for said in ("# Mine", "world:small: ", "| 2 | story-world:small", "## Limits", began):
        assert said in card, said
    lines = (Path("few") / f"ts-dfm-{SOURCE[name]}" / "metrics.jsonl").read_text().splitlines()
    assert all(torch.tensor(json.loads(line).get("loss", 0.0)).isfinite() for line in lines)


def test_a_model_that_answers_scores_is_not_rolled_out(
    tokens: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = many_step("sedd", tokens, tmp_path / "sedd", steps=1)
    words = ["--tokens", str(tokens), "--init-from", str(run), "--out", str(tmp_path / "no")]
    assert main(["train", "fs-dfm", *words]) == 2
    assert "logits are scaled-score cannot be rolled out" in capsys.readouterr().err
    assert not (tmp_path / "no").exists()


PLANS = {
    "mdlm": ("distil_mdlm", []),
    "sdtt": ("distil_mdlm", ["models.teacher.method=sdtt"]),
    "duo": ("distil_duo", []),
    "dfm": ("scale_1b3", []),
    "fs-dfm": ("scale_1b3", []),
}


@pytest.mark.parametrize("kind", PLANS)
def test_every_kind_that_is_rolled_out_stands_in_a_recipe(kind: str, tmp_path: Path) -> None:
    """The commands of the page on public checkpoints, up to their plan."""
    more = ["--part", "student_model"] if kind == "fs-dfm" else []
    place = tmp_path / "run"
    assert main(["import", str(write_public(kind, tmp_path / "public")), "--out", str(place), *more]) == 0
    recipe, flags = PLANS[kind]
    used = "fs-dfm" if kind == "fs-dfm" else "teacher"
    flags = [*flags, f"models.{used}.use={place}", f"tokens.tokenizer_files={place}"]
    plan = make_plan(read_recipe(recipe, flags), tmp_path / "out")
    assert [model.name for model in plan.models if not model.trained] == [used]
    start = next(model for model in plan.training() if model.name == ("ts-dfm" if kind == "fs-dfm" else "fs-dfm"))
    assert start.settings.init_from == place


def test_a_few_step_model_stands_for_a_teacher_where_its_method_is_said(tmp_path: Path) -> None:
    place = tmp_path / "run"
    assert main(["import", str(write_public("sdtt", tmp_path / "public")), "--out", str(place)]) == 0
    flags = [f"models.teacher.use={place}", f"tokens.tokenizer_files={place}"]
    with pytest.raises(UserError, match=r"which is no teacher .*: say models\.teacher\.method=sdtt$"):
        make_plan(read_recipe("distil_mdlm", flags), tmp_path / "out")


def test_students_of_an_imported_dfm_by_the_large_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of the page on scaling with a tiny file in Apple's layout: both students, stopped and resumed."""
    monkeypatch.chdir(tmp_path)
    write_public("dfm", tmp_path / "public")
    Path("public/config.json").write_text('{"model_length": 32}')
    assert main(["import", "public/checkpoint.pth", "--out", "dfm"]) == 0
    assert main(["corpus", "--name", "world:small", "--limit", "120", "--valid", "0.1", "--out", "corpus"]) == 0
    words = ["--tokenizer", "gpt2", "--tokenizer-files", "public", "--length", "32", "--workers", "1"]
    assert main(["tokens", "--corpus", "corpus", "--out", "tokens", *words]) == 0
    small = ["--recipe", "scale_1b3", "--tokens", "tokens", "--loop.device", "cpu", "--loop.compile", "false"]
    small += ["--loop.batch", "2", "--loop.micro", "2", "--loop.save-every", "1", "--eval-rows", "2"]
    net = ["--net.width", "32", "--net.depth", "1", "--net.heads", "2", "--net.cond", "16", "--negatives", "2"]
    assert main(["compass", *small, *net, "--teacher", "dfm", "--out", "compass", "--loop.steps", "2"]) == 0
    for method, more in (("fs-dfm", []), ("ts-dfm", ["--compass", "compass"])):
        command = ["train", method, *small, *more, "--init-from", "dfm", "--out", method, "--eval-times", "1"]
        assert main([*command, "--loop.steps", "2"]) == 0
        assert main([*command, "--loop.steps", "3", "--resume"]) == 0
        spec = load_velocity(method).spec
        assert (spec.step_size, spec.clock, spec.logits, spec.length) == (True, "t", "plain", 32)
