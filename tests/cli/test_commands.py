"""The command line as a user meets it: help, mistakes, and a small pipeline from text to table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_demo import pipeline

import tsdfm
from processes import torchrun
from tsdfm.cli import VERBS, main, read
from tsdfm.compass.model import load_compass
from tsdfm.methods import names
from tsdfm.pipeline.plan import make_plan
from tsdfm.recipes import read_recipe, shipped

METHODS = ("teacher", "fs-dfm", "control", "ts-dfm")


def test_every_verb_has_a_help_that_names_its_settings(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in VERBS.keys() - {"train"}:  # which lists the methods, and each has a help of its own
        with pytest.raises(SystemExit) as end:
            main([*verb.split(), "--help"])
        assert end.value.code == 0
        assert f"tsdfm {verb}" in capsys.readouterr().out
    for name in names():
        with pytest.raises(SystemExit):
            main(["train", name, "--help"])
        assert f"tsdfm train {name}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["teahcer"], "did you mean 'teacher'"),
        (["report"], "report is followed by one of: measure, main"),
        (["report", "mian"], "unknown command 'report mian'; did you mean 'main'?"),
        (["teacher", "--looop.steps", "3"], "did you mean '--loop.steps'"),
        (["teacher", "--tokens", "a", "--out", "b", "--loop.steps", "x"], "loop.steps takes a whole number"),
        (["teacher", "--tokens", "a", "--out", "b", "--loop.steps", "0"], "loop.steps must be from 1 to 1,000,000,000"),
        (["teacher", "--tokens", "nowhere", "--out", "b"], "no folder at nowhere"),
        (["teacher", "--out", "b"], "missing setting 'tokens'"),
        (["teacher", "--recipe", "tiny_cup"], "did you mean 'tiny_cpu'"),
        (["corpus", "--path", "nowhere", "--out", "b"], "no file or folder at nowhere"),
        (["sample", "nowhere"], "no checkpoint or run at nowhere"),
        (["pipeline", "tiny_cpu", "--set", "teecher.loss=x"], "did you mean 'teacher'"),
        (["pipeline", "tiny_cpu", "--set", "teacher.loop.stepps=3"], "did you mean 'steps'"),
        (["pipeline", "tiny_cpu", "--set", "teacher=3"], "must be a table"),
        (["pipeline", "tiny_cpu", "--set", "source.mask.teachr.loss=x"], "did you mean 'teacher'"),
        (["pipeline", "tiny_cpu", "--set", "measure.world=nope"], "unknown story world 'nope'"),
        (["pipeline", "tiny_cpu", "--set", "teacher.schedule=linear"], 'unknown schedule "linear"'),
        (["pipeline", "tiny_cpu", "--set", "compass.corrupt.mixture=shuffle=1"], "unknown strategy 'shuffle'"),
        (["doctor", "tiny"], "no recipe called 'tiny'"),
        (["doctor", "~0"], "there is no home folder ~0"),
        (["sample", "~0"], "model: there is no home folder ~0; give the whole path of a file of that name"),
        (["corpus", "--path", "~0/texts", "--out", "b"], "path: there is no home folder ~0"),
        (["pipeline", "tiny_cpu", "--out", "~0"], "out: there is no home folder ~0"),
        (["pipeline", "tiny_cpu", "--set", "teacher.use=~0"], "teacher: use: there is no home folder ~0"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # nothing half-written


def test_lists_of_methods_are_parted_by_commas_and_judges_are_not() -> None:
    words = ["runs", "--against", "fs-dfm,ts-random", "--against", "ts-dfm", "--judges", "a,b.gguf", "--judges", "c"]
    found = read("report frontier", VERBS["report frontier"], words)
    assert found.against == ("fs-dfm", "ts-random", "ts-dfm")
    assert found.judges == ("a,b.gguf", "c")


def test_an_empty_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "blank.txt").write_text("  \n")
    assert main(["corpus", "--path", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]) == 2
    assert "the corpus is empty" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("recipe", shipped())
def test_every_shipped_recipe_is_valid(recipe: str, tmp_path: Path) -> None:
    text = ("corpus.name=world", "corpus.limit=10") if recipe == "small_h200" else ()  # left to the user's own
    assert make_plan(read_recipe(recipe, text), tmp_path).models
    assert main(["doctor", recipe]) == 0


def doctored(capsys: pytest.CaptureFixture[str], folder: Path, text: str) -> dict[str, str]:
    """What the doctor says of a recipe."""
    (folder / "r.toml").write_text('sources = ["uniform"]\n[corpus]\nname = "world:small"\n' + text)
    capsys.readouterr()
    assert main(["doctor", str(folder / "r.toml"), "--json"]) == 0
    found: dict[str, str] = json.loads(capsys.readouterr().out)["recipe"]
    return found


def test_the_doctor_reads_the_teacher_and_the_tokenizer_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = '[tokens]\ntokenizer_files = "tsdfm-stories"\n'
    used = '[models.teacher]\nmethod = "dfm"\nuse = "tsdfm-stories/teacher"\n'
    compass = '[models.compass]\nmethod = "compass"\ninit = "teacher"\n'
    own = load_compass("tsdfm-stories")
    told, count = own.spec.shape, sum(weight.numel() for weight in own.net.parameters())
    found = doctored(capsys, tmp_path, tokens + used + compass)
    assert found["compass"] == f"{told.depth} blocks of width {told.width}, {count / 1e6:.1f}M"
    found = doctored(capsys, tmp_path, tokens + '[models.teacher]\nmethod = "dfm"\n')
    assert f"|V| = {own.spec.vocab}, length 256" in found["network"]


def test_what_a_blind_student_would_not_use_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["student", "--tokens", str(tmp_path), "--init-from", str(tmp_path), "--out", str(tmp_path / "out")]
    for more in (
        ["--compass", str(tmp_path)],
        ["--navigate.k=8"],
        ["--probe-every", "2"],
        ["--navigate.k", "8", "--policy", "blind"],
    ):
        assert main([*words, *more]) == 2
        flag = more[0].partition("=")[0]
        assert f"{flag} is for navigated steps: add --policy sequence-to-token" in capsys.readouterr().err
    assert main([*words, "--compass", "", "--policy", "token"]) == 2
    assert "compass is empty: give a path" in capsys.readouterr().err


def test_what_sample_would_not_use_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for more, said in (
        (["--navigate.k", "3"], "--navigate is for --guide"),
        (["--live", "--json"], "leave out --json, or --live"),
    ):
        assert main(["sample", "--n", "1", "--steps", "1", "--device", "cpu", *more]) == 2
        assert said in capsys.readouterr().err


def test_the_pipeline_writes_the_table_and_is_not_run_twice(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = json.loads((demo / "report" / "metrics.json").read_text())
    models = [(method, source) for source in ("uniform", "mask") for method in METHODS]
    assert [(row["method"], row["source"], row["steps"], row["nfe"]) for row in rows] == [
        *((method, source, steps, steps) for method, source in models for steps in (2, 4)),
        ("held-out text", None, None, None),
    ]
    page = (demo / "report" / "index.html").read_text(encoding="utf-8")
    assert "ts-dfm" in page
    ways = {path.name for path in (demo / "report" / "trajectories").iterdir()}
    assert ways == {f"{method}-{source}-2.json" for method, source in models}
    compass = json.loads((demo / "report" / "compass.json").read_text())
    for source in ("uniform", "mask"):
        assert {"overall", "time_downstep", "velocity_step"} <= compass[source]["accuracy"].keys()
        assert 0.0 <= compass[source]["adjacent_bins_monotone"] <= 1.0
    needed = {"method", "source", "steps", "nfe", "samples", "judge", "ppl", "entropy_bits", "valid"}
    assert all(needed <= row.keys() for row in rows)
    assert rows[-1]["valid"] == 1.0
    made = sorted(demo.glob("*/checkpoints/*/ema.safetensors"))
    assert {path.relative_to(demo).parts[0] for path in made} == {
        f"{stage}-{source}" for stage in (*METHODS, "compass") for source in ("uniform", "mask")
    }
    before = [path.stat().st_mtime_ns for path in made]
    assert pipeline(demo) == 0
    assert [path.stat().st_mtime_ns for path in made] == before
    capsys.readouterr()
    assert pipeline(demo, "teacher.time_power=0.9") == 2
    assert "other settings" in capsys.readouterr().err
    tokens = json.loads((demo / "tokens" / "manifest.json").read_text())
    (demo / "tokens" / "manifest.json").write_text(json.dumps({**tokens, "made": "again"}))
    assert pipeline(demo) == 2
    assert "was made from other tokens" in capsys.readouterr().err
    (demo / "tokens" / "manifest.json").write_text(json.dumps(tokens, indent=2, ensure_ascii=False) + "\n")
    assert pipeline(demo) == 0


def test_tables_as_json(demo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a report prints as JSON is the table that it wrote, and nothing else is on stdout."""
    for name in ("main", "overhead"):
        capsys.readouterr()
        assert main(["report", name, str(demo), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["rows"]
        assert found == json.loads((demo / "report" / f"{name}.json").read_text(encoding="utf-8"))
    capsys.readouterr()
    page = main(["report", "page", str(demo), "--json"])
    assert (page, json.loads(capsys.readouterr().out)) == (0, {"path": str(demo / "report" / "index.html")})


def test_sampling_keeps_the_prefix_and_writes_what_was_asked(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts, way = tmp_path / "texts.jsonl", tmp_path / "way.json"
    words = ["sample", "--live", str(demo / "teacher-uniform"), "--n", "2", "--steps", "3", "--prefix", "Mia has"]
    assert main([*words, "--out", str(texts), "--save-trajectory", str(way)]) == 0
    lines = [json.loads(line) for line in texts.read_text().splitlines()]
    assert [line["text"].startswith("Mia has") for line in lines] == [True, True]
    assert "step 3/3" in capsys.readouterr().out
    assert json.loads(way.read_text())["nfe"] == 3


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "0"], "steps must be at least 1"),
        (["--prefix", "Mia has " * 40], "shorten it"),
        (["--infill", "Mia has two"], "no gap"),
        (["--temperature", "-1"], "temperature"),
        (["--top-p", "0"], "top"),
        (["--device", "toaster"], "unknown device"),
        (["--compass", "somewhere"], "guides nothing without --guide"),
    ],
)
def test_bad_sampling_requests(demo: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(demo / "teacher-uniform"), *flags]) == 2
    assert said in capsys.readouterr().err


def test_a_tampered_checkpoint_is_refused(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "run"
    subprocess.run(["cp", "-r", str(demo / "teacher-uniform"), str(copy)], check=True)
    weights = sorted(copy.rglob("ema.safetensors"))[-1]
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    assert main(["sample", str(copy)]) == 2
    assert "was changed after it was written" in capsys.readouterr().err
    weights.write_bytes(bytes(data[:100]))
    assert main(["sample", str(copy)]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_a_checkpoint_with_another_vocabulary_is_refused(
    demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "bytes"
    assert main(["tokens", "--corpus", str(demo / "corpus"), "--out", str(out), "--tokenizer", "byte"]) == 0
    words = [
        "teacher",
        "--tokens",
        str(out),
        "--out",
        str(tmp_path / "t"),
        "--init-from",
        str(demo / "teacher-uniform"),
    ]
    assert main([*words, "--net.width", "32", "--net.depth", "1"]) == 2
    assert "do not belong together" in capsys.readouterr().err


def test_torchrun_trains_the_same_teacher(demo: Path, tmp_path: Path) -> None:
    """As a user starts it, two processes with DDP; and again with FSDP2, from a server that has torch loaded."""
    words = "--net.width 32 --net.depth 2 --net.dropout 0 --loop.steps 4 --loop.batch 8 --loop.log-every 1"
    flags = ["teacher", "--tokens", str(demo / "tokens"), *words.split(), "--eval-rows", "8", "--eval-times", "2"]
    assert main([*flags, "--out", str(tmp_path / "alone")]) == 0
    together = {kind: [*flags, "--loop.parallel", kind, "--out", str(tmp_path / kind)] for kind in ("ddp", "fsdp")}
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tsdfm"]
    subprocess.run([*launch, *together["ddp"]], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    child = torchrun(str(Path(tsdfm.__file__).parent / "__main__.py"), *together["fsdp"])
    assert child.wait() == 0, child.said()
    for kind in together:
        for one, two in zip(metrics(tmp_path / "alone"), metrics(tmp_path / kind), strict=True):
            for name in ("loss", "grad_norm", "elbo"):
                if name in one:
                    assert two[name] == pytest.approx(one[name], rel=2e-5)


def metrics(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_threads_share_cores_unless_told_otherwise() -> None:
    """It must be said before torch is there, which the command line loads late."""
    code = "import sys, tsdfm.cli as cli; assert 'torch' not in sys.modules; cli.share_cores(); import os; "
    code += "print(os.environ.get('GOMP_SPINCOUNT'))"
    for given, wanted in (({}, "10000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "None")):
        kept = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
        done = subprocess.run([sys.executable, "-c", code], env={**kept, **given}, capture_output=True, text=True)
        assert done.stdout.strip() == wanted, done.stderr
