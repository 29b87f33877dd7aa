"""Run a recipe from text to report: corpus → tokens → teacher → compass → students → report, for each source.

Every stage has a folder in the pipeline's: OUT/corpus, OUT/tokens, OUT/teacher-uniform, OUT/compass-uniform,
OUT/fs-dfm-uniform, …, and OUT/report. A stage that was broken off goes on where it was; one that is finished with the
same settings is skipped.

A recipe has a section for each stage it wants. `sources = ["uniform", "mask"]` runs the stages after `tokens` for both,
and `[source.mask.teacher]` lays settings over `[teacher]` for one of them. `[students.NAME]` lays settings over
`[student]` and makes a student of that name, `[compasses.NAME]` does the same for a further compass; `like = "ts-dfm"`
starts from another one's settings, and `sources = ["uniform"]` leaves it to one source. Where they ask for a model
(`init_from`, `compass`, `proposer`), `teacher`, `compass` and the other names stand for the run of the same source.
`extends = "tiny_cpu"` starts from another recipe, and `seed = 1` seeds every stage after the tokens.
"""

from tsdfm.pipeline.settings import PipelineSettings

__all__ = ["PipelineSettings"]
