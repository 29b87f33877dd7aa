"""`tsdfm report frontier`: perplexity against entropy, and perplexity at matched entropy relative to a control."""

from tsdfm.report.sweeps import frontier as run

__all__ = ["run"]
