"""Run a recipe from text to report: corpus → tokens → judge → models → report, the models for each source.

Every stage has a folder in the pipeline's: OUT/corpus, OUT/tokens, OUT/teacher-uniform, OUT/compass-uniform,
OUT/fs-dfm-uniform, …, and OUT/report. A stage that was broken off goes on where it was; one that is finished with the
same settings is skipped. `recipes/recipe.py` says what the words of a recipe mean, `plan.py` what becomes of them.
"""

from tsdfm.pipeline.settings import PipelineSettings

__all__ = ["PipelineSettings"]
