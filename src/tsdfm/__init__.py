"""Trajectory-Shaped Discrete Flow Matching: language models that write a whole text in a few network passes."""

__version__ = "0.1.0"
