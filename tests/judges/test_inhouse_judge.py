"""The judge tsdfm trains itself: it learns, is kept by held-out likelihood, scores, and writes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from judge_parts import train_judge

from tsdfm.errors import UserError
from tsdfm.flow import RowNoise
from tsdfm.judges import causal, judge_from
from tsdfm.judges.generate import generate
from tsdfm.judges.inhouse import CausalModel, inhouse_judge, load_causal
from tsdfm.nn.causal import CausalNet
from tsdfm.nn.settings import NetSettings
from tsdfm.store.checkpoint import find_checkpoint
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.rows import TokenRows


@pytest.fixture(scope="module")
def model(judge_run: Path) -> CausalModel:
    return load_causal(judge_run, "cpu")


def test_it_learns_and_is_kept_by_held_out_likelihood(judge_run: Path) -> None:
    lines = [json.loads(line) for line in (judge_run / "metrics.jsonl").read_text().splitlines()]
    nlls = [line["nll"] for line in lines if "nll" in line]
    assert len(nlls) == 2
    assert nlls[1] < nlls[0] < math.log(380)
    best = json.loads((judge_run / "checkpoints" / "best.json").read_text())
    assert best["metric"] == "nll"
    assert best["value"] == min(nlls)
    assert find_checkpoint(judge_run, "best").name == f"step-{best['step']:08d}"
    assert read_manifest(judge_run)["stage"] == "judge"


def test_the_evaluation_is_the_mean_over_the_row(judge_run: Path, documents: Path, model: CausalModel) -> None:
    best = json.loads((judge_run / "checkpoints" / "best.json").read_text())["value"]
    valid = TokenRows(documents, "valid")
    rows = torch.from_numpy(valid.take([i * len(valid) // 32 for i in range(32)]).astype("int64"))
    logp = model.net(rows[:, :-1]).log_softmax(-1)
    nats = -logp.gather(-1, rows[:, 1:, None]).squeeze(-1)
    assert float(nats.mean()) == pytest.approx(best, rel=1e-4)


def test_a_text_costs_what_its_row_does_up_to_its_end(judge_run: Path, documents: Path, model: CausalModel) -> None:
    """From the anchor to the end-of-text, which is scored too."""
    made = judge_from(str(judge_run), "cpu")
    assert made.fingerprint.startswith(f"inhouse:judge:{model.sha256[:8]}")
    rows = TokenRows(documents, "valid")
    texts = [rows.tokenizer.first_document(rows[i][1:]) for i in range(5)]
    for i, score in enumerate(made.score(texts)):
        row = torch.from_numpy(rows[i].astype("int64"))
        stop = int((row[1:] == rows.end_of_text).nonzero()[0]) + 1
        logp = model.net(row[None, :stop]).log_softmax(-1)[0]
        nats = -logp.gather(-1, row[1 : stop + 1, None]).sum()
        assert score.tokens == stop
        assert score.nll == pytest.approx(float(nats), rel=1e-4)
        assert score.characters == len(texts[i])


def test_it_prefers_stories_to_nonsense(judge_run: Path, documents: Path) -> None:
    rows = TokenRows(documents, "valid")
    real = [rows.tokenizer.first_document(rows[i][1:]) for i in range(16)]
    mixed = [" ".join(sorted(text.split())) for text in real]
    made = judge_from(str(judge_run), "cpu")
    good, bad = (sum(s.nll for s in made.score(texts)) for texts in (real, mixed))
    assert good < 0.8 * bad


def test_packed_rows_train_too_and_have_no_end(packed: Path, tmp_path: Path) -> None:
    out = train_judge(packed, tmp_path / "packed", steps=4)
    made = judge_from(str(out), "cpu")
    text = "Mia has two red balls."
    model = load_causal(out, "cpu")
    (score,) = made.score([text])
    assert score.tokens == len(model.tokenizer.encode(text))
    written = model.write(n=3, seed=1, batch=2)
    assert written.tokens.shape == (3, 56)
    assert written.nfe == 56


def test_resuming_gives_the_unbroken_run(documents: Path, tmp_path: Path) -> None:
    from tsdfm.judges.settings import JudgeLoop, JudgeTrainSettings
    from tsdfm.judges.train import run

    def settings(out: str, steps: int, resume: bool = False) -> JudgeTrainSettings:
        loop = JudgeLoop(steps=steps, batch=4, eval_every=0, save_every=2)
        net = NetSettings(width=32, depth=1, heads=2)
        return JudgeTrainSettings(
            tokens=documents, out=tmp_path / out, net=net, loop=loop, resume=resume, eval_rows=4, tied=False
        )

    run(settings("whole", 4))
    first = settings("parts", 4)
    run(first)
    # as if killed after step 2: the later checkpoint and the end are gone
    import shutil

    shutil.rmtree(tmp_path / "parts" / "checkpoints" / "step-00000004")
    with pytest.raises(UserError, match="already has checkpoints"):
        run(first)
    run(settings("parts", 4, resume=True))
    a, b = (load_causal(tmp_path / name, "cpu", choose="newest") for name in ("whole", "parts"))
    assert a.sha256 == b.sha256


def test_writing_is_deterministic_and_knows_no_batch(model: CausalModel) -> None:
    one, again = model.write(n=6, seed=3, batch=6), model.write(n=6, seed=3, batch=4)
    assert torch.equal(one.tokens, again.tokens)
    assert torch.equal(model.write(n=2, seed=3, first=4).tokens, one.tokens[4:])
    assert not torch.equal(model.write(n=6, seed=4).tokens, one.tokens)
    assert one.nfe == 55
    end = model.tokenizer.end_of_text
    for row in one.tokens.tolist():  # an anchor, a text, and nothing after its end
        assert row[0] == end
        if end in row[1:]:
            assert set(row[row.index(end, 1) :]) == {end}
    assert all(text.startswith("Mia has") for text in model.write(n=3, seed=0, prefix="Mia has").texts)


def test_cold_writing_takes_the_likeliest_token_of_the_plain_network(model: CausalModel) -> None:
    tokens = model.write(n=1, temperature=0.0).tokens
    logits = model.net(tokens[:, :-1])
    end = model.tokenizer.end_of_text
    stop = (tokens[0, 1:] == end).nonzero()
    upto = int(stop[0]) + 1 if len(stop) else tokens.shape[1] - 1
    assert torch.equal(logits.argmax(-1)[0, :upto], tokens[0, 1 : 1 + upto])


def test_draws_follow_the_network(model: CausalModel) -> None:
    """First tokens of many texts against the law that the network gives after the start."""
    n = 3000
    start = torch.tensor([model.tokenizer.end_of_text])
    tokens = generate(model.net, start, 1, RowNoise(0, torch.arange(n)))
    law = model.net(start[None]).softmax(-1)[0, 0].double()
    share = torch.bincount(tokens[:, 1], minlength=model.vocab).double() / n
    assert float((share - law).abs().max()) < 5 * float((law * (1 - law) / n).sqrt().max())


def test_each_place_has_a_draw_of_its_own() -> None:
    """A network without an opinion: neighbours are equal as often as chance has it."""
    net = CausalNet(NetSettings(width=8, depth=1, heads=1).shape(), vocab=10).eval()
    torch.nn.init.zeros_(net.embedding.weight)
    tokens = generate(net, torch.tensor([0]), 3, RowNoise(0, torch.arange(2000)))
    for a, b in ((1, 2), (2, 3), (1, 3)):
        same = float((tokens[:, a] == tokens[:, b]).double().mean())
        assert abs(same - 0.1) < 5 * (0.1 * 0.9 / 2000) ** 0.5


def test_generation_from_a_plain_generator(model: CausalModel) -> None:
    start = torch.tensor([model.tokenizer.end_of_text])
    made = [generate(model.net, start, 5, torch.Generator().manual_seed(1), rows=4) for _ in range(2)]
    assert made[0].shape == (4, 6)
    assert torch.equal(made[0], made[1])
    with pytest.raises(UserError, match="needs the number of rows"):
        generate(model.net, start, 5, torch.Generator())
    with pytest.raises(UserError, match="shorten it"):
        model.write(prefix="Mia has " * 60)


def test_bf16_reads_and_writes_nearly_the_same(judge_run: Path, model: CausalModel) -> None:
    rough = load_causal(judge_run, "cpu", precision="bf16")
    assert rough.bf16
    written = rough.write(n=2, seed=0)
    assert written.tokens.shape == (2, 56)
    judges = [judge_from(str(judge_run), "cpu", precision) for precision in ("fp32", "bf16")]
    assert [judge.precision for judge in judges] == ["fp32", "bf16"]
    exact, near = (judge.score(model.write(n=8, seed=1).texts) for judge in judges)
    assert sum(s.nll for s in near) == pytest.approx(sum(s.nll for s in exact), rel=0.02)


def test_a_teacher_is_no_judge(documents: Path) -> None:
    with pytest.raises(UserError, match="holds no complete checkpoint"):
        judge_from(str(documents))


def test_texts_read_in_strips_have_the_same_scores(
    judge_run: Path, word_texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts of many lengths, of which one is empty and one has several windows, by sums over one, some and all."""
    judge, texts = inhouse_judge(judge_run, "cpu"), ["", *word_texts, " ".join(word_texts)]
    assert len(judge._windows(texts, [0] * len(texts))) > len(texts)
    wanted, spelled = judge.score(texts), judge.spelled(texts)
    width = judge.reader.vocab * judge.context
    for room in (1, 3 * width, 1 << 40):
        monkeypatch.setitem(causal.STRIP, "cpu", room)
        for one, other in zip(judge.score(texts), wanted, strict=True):
            assert (one.tokens, one.characters) == (other.tokens, other.characters)
            assert one.nll == pytest.approx(other.nll, rel=1e-6)
        for mine, theirs in zip(judge.spelled(texts), spelled, strict=True):
            torch.testing.assert_close(mine.costs, theirs.costs)
