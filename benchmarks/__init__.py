"""Speed and memory, as ratios, side by side: `python -m benchmarks all`, or one of the tables in `__main__`."""
