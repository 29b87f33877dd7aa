"""Trajectories and pipeline folders for the tests of the page and the viewer: small, and some of them hostile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny_nets import stir, tiny_shape

from tsdfm.compass.network import spec_from
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.samples.trajectory import Change, Row, Trajectory
from tsdfm.store.checkpoint import Store
from tsdfm.store.files import write_json

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!--<script>&amp;'\"\u2028{{data}}"
END, MASK = 3, 5


def way(method: str = "teacher", source: str = "uniform", **given: Any) -> Trajectory:
    """Two texts in three steps: in the first, place 1 is written, rewritten and place 3 is never touched."""
    uniform = source == "uniform"
    noise = 4 if uniform else MASK
    first = Row(
        (END, noise, noise, 2),
        (0,),
        (
            Change(0.0, 0.25, ((1, 0),), 0.25, 2.5),
            Change(0.25, 0.25, ((1, 2), (2, 1)), 0.5, 1.25),
            Change(0.5, 0.5, ((1, 0),), 0.875, -3.0),
        ),
        4.0,
    )
    second = Row(
        (END, noise, noise, noise),
        (0,),
        tuple(Change(t, h, (), 0.5) for t, h in ((0.0, 0.25), (0.25, 0.25), (0.5, 0.5))),
    )
    made = Trajectory(
        method=method,
        source=source,
        steps=3,
        nfe=3,
        seed=0,
        vocab=5,
        mask=None if uniform else MASK,
        end_of_text=END,
        pieces={0: "the", 1: " cat", 2: " sat", 4: HOSTILE},
        rows=(first, second),
    )
    return Trajectory(**{**vars(made), **given})


def row(method: str, source: str, steps: int, valid: float, **given: Any) -> dict[str, Any]:
    plain = {
        "method": method,
        "source": source,
        "steps": steps,
        "nfe": steps,
        "samples": 64,
        "judge": "story-world:small:0123abcd",
        "valid": valid,
        "valid_interval": [valid - 0.05, valid + 0.05],
        "ppl": 4.0 - valid,
        "ppl_interval": [3.5 - valid, 4.5 - valid],
        "nll": 30.0,
        "entropy_bits": 4.2,
        "entropy_interval": [4.1, 4.3],
        "length": 36,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": 0,
        "checkpoint": "0123456789abcdef",
        "hardware": "CPU, 2 cores",
        "tokens_per_s": 12345.6,
        "texts": [f"{method} says {HOSTILE}"],
        "collapsed": False,
    }
    return {**plain, **given}


def real() -> dict[str, Any]:
    made = row("held-out text", "", 1, 1.0, valid_interval=[0.94, 1.0], texts=["Mia has two red shells."])
    return {**made, "source": None, "steps": None, "nfe": None, "temperature": None, "tokens_per_s": None}


def rows() -> list[dict[str, Any]]:
    made = [row("teacher", s, k, v) for s in ("uniform", "mask") for k, v in ((4, 0.125), (64, 0.75))]
    made += [row("ts-dfm", "uniform", 4, 0.5), row("ts-dfm", "mask", 4, 0.25, entropy_bits=3.0, collapsed=True)]
    made += [row(HOSTILE, "mask", 4, 0.25, nll=None)]
    return [*made, real()]


def exam(source: str) -> dict[str, Any]:
    bins = [{"from": b / 10, "to": min(1.0, (b + 1) / 10), "count": 9, "mean": 5.0 - b, "std": 0.5} for b in range(11)]
    bins[3] = {**bins[3], "mean": None, "std": None}
    return {
        "source": source,
        "bins": bins,
        "accuracy": {"overall": 0.975, "random_replace": 0.9875},
        "smoothness": 0.96,
        "spearman": -0.95,
    }


def a_table() -> dict[str, Any]:
    columns = [{"name": "policy", "label": "policy", "align": "left", "format": "text"}]
    columns += [{"name": "ppl", "label": HOSTILE, "align": "right", "format": ".3f"}]
    made = [
        {"policy": HOSTILE, "ppl": 2.0},
        {"policy": "token", "ppl": 1.5, "marks": ["ppl"]},
        {"policy": "quoted", "ppl": 71.0, "paper": True},
    ]
    return {"title": f"Policies {HOSTILE}", "columns": columns, "rows": made, "notes": [HOSTILE], "paper": None}


def frontier() -> dict[str, Any]:
    points = [
        {
            "method": m,
            "source": "uniform",
            "steps": 4,
            "temperature": t,
            "ppl": 2 + t,
            "entropy_bits": 3 + t,
            "bigram_entropy_bits": 7 + t,
        }
        for m in ("teacher", "ts-dfm")
        for t in (0.7, 1.0, 1.1)
    ]
    return {**a_table(), "points": points, "target": {**real(), "bigram_entropy_bits": 8.0}}


def pipeline(folder: Path) -> Path:
    """A folder as a pipeline leaves it, with texts that try to break out of the page."""
    report = folder / "report"
    write_json(report / "metrics.json", rows())
    write_json(report / "compass.json", {source: exam(source) for source in ("uniform", "mask")})
    write_json(report / "frontier.json", frontier())
    write_json(report / "policy.json", a_table())
    write_json(report / "unrelated.json", [1, 2, 3])
    for method in ("teacher", "ts-dfm"):
        for source in ("uniform", "mask"):
            way(method, source, compass="feedfeedfeedfeed").save(report / "trajectories" / f"{method}-{source}-3.json")
    for name in ("teacher-uniform", "teacher-mask", "ts-dfm-uniform"):
        stage, _, source = name.rpartition("-")
        about = {"stage": stage, "created": "2026-01-01T00:00:00+00:00", "seed": 0}
        about["model"] = {"source": source, "schedule": "cubic", "step_size": stage != "teacher"}
        about["settings"] = {"tokens": str(folder / "tokens"), "note": HOSTILE, "loop": {"steps": 300}}
        write_json(folder / name / "manifest.json", about)
        lines = [
            {"step": 10 * i, "kind": "train", "loss": 3.0 / (i + 1), "nav/navigated": 0.8, "nav/accept": 0.9}
            for i in range(1, 31)
        ]
        lines += [{"step": 100 * i, "kind": "eval", "elbo": 2.0 / i, "kl": None} for i in range(1, 4)]
        (folder / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def save_compass(out: Path, spec: VelocitySpec) -> Path:
    """A compass's run as the engine leaves it, for models of `spec`."""
    made = spec_from(spec, tiny_shape(), "nce")
    manifest = {"stage": "compass", "compass": made.plain()}
    weights = stir(made.network(), 7).state_dict()
    Store(out).save(1, {"model": weights}, {"best": None}, manifest)
    write_json(out / "manifest.json", manifest)
    return out
