"""Distil a student that needs few network passes from a teacher that needs many.

The texts are the story world's, of which an exact judge says whether they are right. The settings are those of the
demo's recipe. It needs two minutes on two CPU cores; TSDFM_EXAMPLE_STEPS sets the steps of both trainings.
"""

import os
from pathlib import Path

import tsdfm
from tsdfm.corpus.run import run as make_corpus
from tsdfm.corpus.settings import CorpusSettings
from tsdfm.corpus.story_judge import judge
from tsdfm.corpus.world import world_named
from tsdfm.methods import method
from tsdfm.recipes import read_recipe
from tsdfm.settings import build
from tsdfm.tokens.run import run as make_tokens
from tsdfm.tokens.settings import TokensSettings


def main(steps: int = 300, out: Path = Path("runs/examples/distil")) -> None:
    small = ["corpus.limit=4000", "teacher.eval_rows=32", "student.eval_rows=32"]
    recipe = read_recipe("tiny_cpu", [*small, f"teacher.loop.steps={steps}", f"student.loop.steps={steps}"])
    corpus = make_corpus(build(CorpusSettings, {**recipe.values_for("corpus"), "out": out / "corpus"}))
    tokens = make_tokens(
        build(TokensSettings, {**recipe.values_for("tokens"), "corpus": corpus, "out": out / "tokens"})
    )

    def train(by: str, **places: Path) -> Path:
        values = {**recipe.values_for(by), **places, "tokens": tokens, "out": out / by, "resume": True}
        return method(by).train(build(method(by).settings, values))

    teacher = train("dfm")
    student = train("fs-dfm", init_from=teacher)
    world = world_named("small")
    for run in (teacher, student):
        model = tsdfm.load(run)
        for passes in (4, 16):
            texts = model.sample(n=64, steps=passes, seed=1).texts
            right = sum(judge(text, world).valid for text in texts)
            print(f"{run.name:7} {passes:3} passes: {right:2} of {len(texts)} stories are right, as: {texts[0]}")


if __name__ == "__main__":
    main(steps=int(os.environ.get("TSDFM_EXAMPLE_STEPS", 300)))
