"""Speed and memory, as ratios, side by side: `python -m benchmarks all`; or compass, kernels, sampling, student."""
