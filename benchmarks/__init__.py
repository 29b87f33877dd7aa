"""Speed and memory, as ratios, side by side: `python -m benchmarks compass`, `python -m benchmarks student`."""
