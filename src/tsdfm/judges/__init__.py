"""Judges: models that say how likely a text is. Between the samples and the report.

base      what a judge is, and the conventions    windows   texts longer than a judge's context, batches
world     the story world's exact judge           causal    any next-token network as a judge
hub       transformers models                     gguf      GGUF files, wheels, SmolLM2-135M
inhouse   models trained by `tsdfm judge train`   cache     scores that survive an interruption
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tsdfm.judges.base import Judge, Score

if TYPE_CHECKING:
    from tsdfm.judges.cache import score_file
    from tsdfm.judges.load import judge_from

__all__ = ["Judge", "Score", "judge_from", "score_file"]


def __getattr__(name: str) -> Any:
    """The rest when it is first asked for: it needs torch."""
    if name == "judge_from":
        from tsdfm.judges.load import judge_from

        return judge_from
    if name == "score_file":
        from tsdfm.judges.cache import score_file

        return score_file
    raise AttributeError(f"module 'tsdfm.judges' has no attribute {name!r}")
