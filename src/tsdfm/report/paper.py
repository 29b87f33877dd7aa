r"""The paper's own figures, as its tables give them, by their \label. They stand beside ours in every report.

They come from 170M-parameter models (1.3B where said) trained on FineWeb-Edu, 1 024 tokens long, and are judged by
GPT-2 Large (G²), LLaMA-2 7B (L²) and LLaMA-3 8B (L³): another scale, another judge. Entropy is in bits.
"""

from __future__ import annotations

from typing import Any

from tsdfm.report.table import Quote

SCALE = "paper, 170M, GPT-2 judge"
SCALE_UNJUDGED = "paper, 170M"
SCALE_LARGE = "paper, 1.3B, GPT-2 judge"

Figures = tuple[float, float, float, float]
"""(entropy, G², L², L³)."""

STEPS = (4, 8, 16, 32, 1024)


def _at(*figures: Figures) -> dict[int, Figures]:
    """Figures by step count."""
    return dict(zip(STEPS, figures, strict=False))


# tab:main: source → method → steps → figures
# fmt: off
MAIN: dict[str, dict[str, dict[int, Figures]]] = {
    "uniform": {
        "teacher": _at((8.1, 749.9, 413.3, 772.9), (8.1, 328.9, 186.7, 340.4), (8.0, 176.9, 100.8, 177.2),
                       (8.0, 117.7, 67.0, 114.1), (7.8, 82.8, 47.8, 78.9)),
        "fs-dfm": _at((7.0, 169.7, 99.8, 188.9), (7.4, 87.6, 52.0, 98.5), (7.4, 73.2, 45.1, 81.6),
                      (7.7, 67.8, 39.0, 69.5)),
        "ts-dfm (DFM init)": _at((7.1, 121.2, 73.4, 120.6), (7.3, 79.0, 47.7, 79.9), (7.6, 70.1, 41.5, 69.5),
                                 (7.8, 71.0, 41.0, 69.7)),
        "ts-dfm (FS-DFM init)": _at((7.0, 100.3, 57.1, 98.5), (7.2, 56.1, 32.2, 54.6), (7.4, 47.2, 27.1, 46.4),
                                    (7.5, 46.7, 28.5, 47.4)),
    },
    "mask": {
        "teacher": _at((8.5, 1473.3, 561.2, 1441.0), (8.4, 761.3, 307.0, 754.9), (8.4, 359.3, 152.7, 348.9),
                       (8.3, 190.3, 87.0, 184.2), (8.1, 93.6, 45.7, 87.9)),
        "fs-dfm": _at((8.2, 1015.7, 367.1, 943.5), (8.2, 516.6, 204.9, 492.4), (8.2, 284.7, 122.7, 271.6),
                      (8.2, 189.0, 86.3, 182.5)),
        "ts-dfm (DFM init)": _at((7.1, 157.4, 132.2, 149.8), (7.4, 91.4, 73.1, 91.3), (7.6, 61.9, 45.6, 61.1),
                                 (7.7, 52.4, 37.0, 51.3)),
        "ts-dfm (FS-DFM init)": _at((7.7, 386.7, 201.2, 363.4), (7.9, 188.7, 94.8, 177.4), (8.0, 109.9, 55.2, 101.9),
                                    (8.0, 91.4, 45.4, 84.5)),
    },
}

# tab:scaling_1_3b: method → steps → figures, uniform source, 1.3B parameters
SCALING: dict[str, dict[int, Figures]] = {
    "teacher": _at((8.1, 913.6, 458.6, 915.2), (8.1, 320.7, 169.6, 320.6), (8.0, 142.3, 77.4, 138.8),
                   (7.9, 91.9, 51.3, 88.5), (7.9, 57.5, 32.1, 54.5)),
    "fs-dfm": _at((7.2, 188.6, 80.8, 170.3), (7.4, 81.5, 38.2, 73.5), (7.5, 49.5, 23.9, 44.5), (7.7, 44.9, 22.8, 41.0)),
    "ts-dfm": _at((7.0, 98.9, 51.0, 92.4), (7.3, 48.0, 26.6, 46.7), (7.5, 33.1, 18.8, 32.0), (7.6, 31.5, 18.1, 30.7)),
}

# tab:threshold_ablation: source → init → steps → τ → (entropy, G²)
THRESHOLD: dict[str, dict[str, dict[int, dict[float, tuple[float, float]]]]] = {
    "uniform": {
        "DFM": {
            8: {0.02: (6.4, 54.7), 0.2: (7.3, 79.0), 0.4: (7.5, 87.9)},
            16: {0.02: (7.2, 56.3), 0.2: (7.6, 70.1), 0.4: (7.6, 69.6)},
        },
        "FS-DFM": {
            8: {0.02: (6.4, 43.5), 0.2: (7.2, 56.1), 0.4: (7.2, 71.5)},
            16: {0.02: (6.8, 35.8), 0.2: (7.4, 47.2), 0.4: (7.4, 53.9)},
        },
    },
    "mask": {
        "DFM": {
            8: {0.02: (6.2, 92.9), 0.2: (7.4, 91.4), 0.4: (7.8, 139.4)},
            16: {0.02: (7.6, 89.5), 0.2: (7.6, 61.9), 0.4: (7.8, 78.8)},
        },
        "FS-DFM": {
            8: {0.02: (7.4, 137.0), 0.2: (7.9, 188.7), 0.4: (8.0, 254.2)},
            16: {0.02: (7.6, 83.1), 0.2: (8.0, 109.9), 0.4: (8.1, 118.9)},
        },
    },
}
PAPER_COLLAPSE = 6.5
"""The paper stars entropies below this."""

# tab:c2f_wallclock: method → seconds a training step, and the ratio to FS-DFM
OVERHEAD: dict[str, tuple[float, float]] = {
    "fs-dfm": (1.37, 1.0),
    "ts-dfm (τ = 0.4)": (2.79, 2.0),
    "ts-dfm (τ = 0.2)": (3.07, 2.2),
    "ts-dfm (τ = 0.02)": (3.31, 2.4),
}

# tab:policy_comparison: steps → policy → figures, FS-DFM student, uniform source
POLICIES = ("none", "sequence", "token", "sequence-to-token")
POLICY: dict[int, dict[str, Figures]] = {
    steps: dict(zip(POLICIES, figures, strict=True))
    for steps, figures in {
        8: ((7.32, 89.6, 58.2, 109.7), (6.99, 81.2, 52.2, 99.6), (7.04, 90.7, 62.7, 106.8), (6.93, 86.2, 58.3, 104.3)),
        16: ((7.51, 70.4, 47.3, 88.7), (7.21, 51.9, 33.3, 61.3), (7.29, 58.9, 41.7, 69.3), (7.1, 50.8, 36.3, 59.5)),
        32: ((7.7, 70.6, 39.7, 68.1), (7.4, 53.3, 36.5, 58.4), (7.39, 46.8, 35.7, 55.4), (7.26, 43.1, 31.2, 49.1)),
        64: ((7.82, 75.0, 41.1, 72.0), (7.5, 52.0, 31.5, 51.3), (7.54, 47.6, 31.0, 47.1), (7.36, 38.0, 24.4, 37.0)),
    }.items()
}

# tab:refinement_stats: steps → accepted, tokens replaced a step, share of 1 024, ΔE accepted, ΔE rejected
REFINEMENT: dict[int, tuple[float, float, float, float, float]] = {
    8: (0.947, 79.4, 0.078, -0.081, 0.629),
    16: (0.978, 36.1, 0.035, -0.041, 0.757),
    64: (0.999, 8.2, 0.008, -0.01, 0.348),
}

# tab:k_ablation: K (0 is no guidance) → figures and seconds for 504 texts; sequence-to-token, 8 steps
CANDIDATES: dict[int, tuple[Figures, float]] = {
    0: ((7.26, 90.8, 59.4, 115.9), 31.0),
    2: ((6.56, 61.2, 49.9, 88.7), 147.8),
    3: ((6.5, 59.3, 41.8, 75.7), 185.7),
    5: ((6.68, 56.0, 37.8, 66.2), 261.9),
    8: ((6.57, 57.6, 40.3, 70.6), 376.5),
    10: ((6.56, 57.4, 40.4, 69.9), 449.1),
}

# tab:midpoint_diversity: steps → t_mid → self-BLEU, edit distance, agreement; 48 midpoints, 10 completions, uniform
DIVERSITY: dict[int, dict[float, tuple[float, float, float]]] = {
    8: {0.0: (0.146, 0.908, 0.242), 0.1: (0.688, 0.199, 0.86), 0.2: (0.749, 0.144, 0.9),
         0.3: (0.864, 0.096, 0.933), 0.5: (0.946, 0.031, 0.979),
         0.7: (0.981, 0.013, 0.991), 0.9: (0.993, 0.004, 0.997)},
    64: {0.0: (0.06, 0.962, 0.181), 0.1: (0.642, 0.219, 0.845), 0.2: (0.777, 0.141, 0.9),
         0.3: (0.838, 0.1, 0.93), 0.5: (0.938, 0.04, 0.972),
         0.7: (0.978, 0.012, 0.991), 0.9: (0.994, 0.003, 0.998)},
}

# tab:dlm_comparison: method → steps → ppl, entropy, MAUVE of 512-token continuations of 512-token prefixes
PREFIX: dict[str, dict[int, tuple[float, float, float]]] = {
    "Dream (7B)": {4: (752.11, 1.53, 0.005), 8: (739.4, 1.74, 0.006), 16: (630.3, 2.31, 0.005)},
    "LLaDA (8B)": {4: (495.17, 0.47, 0.005), 8: (441.26, 0.42, 0.005), 16: (432.65, 0.5, 0.005)},
    "fs-dfm": {4: (97.07, 7.89, 0.053), 8: (75.78, 7.95, 0.27), 16: (67.42, 7.97, 0.39)},
    "ts-dfm": {4: (68.95, 7.7, 0.038), 8: (57.11, 7.8, 0.339), 16: (53.97, 7.86, 0.707)},
}

# tab:monotonicity, tab:monotonicity_aggregate, tab:violations_by_time, tab:strategy_accuracy
COMPASS: dict[str, dict[str, Any]] = {
    "uniform": {
        "bins": (-0.12, -0.57, -0.75, -0.9, -1.02, -1.1, -1.17, -1.22, -1.29, -1.34, -1.45),
        "bins_std": (0.5, 0.07, 0.06, 0.06, 0.08, 0.07, 0.12, 0.21, 0.21, 0.38, 0.38), "adjacent_bins_monotone": 1.0,
        "smoothness": 0.972, "samples_with_violation": 0.22, "largest_violation": 1.14, "spearman": -0.94,
        "pearson": -0.8, "energy_gap": 1.33, "violations_by_region": (3, 4, 4, 4, 11, 12, 18, 19, 17, 22),
        "accuracy": {"random_replace": 0.986, "frequency_replace": 0.984, "token_repeat": 0.988,
                     "time_downstep": 0.982, "overall": 0.985},
    },
    "mask": {
        "bins": (-1.94, -2.24, -2.35, -2.43, -2.47, -2.55, -2.59, -2.66, -2.68, -2.75, -3.2),
        "bins_std": (0.34, 0.13, 0.19, 0.21, 0.34, 0.31, 0.42, 0.38, 0.52, 0.55, 0.61), "adjacent_bins_monotone": 1.0,
        "smoothness": 0.94, "samples_with_violation": 0.37, "largest_violation": 1.4, "spearman": -0.85,
        "pearson": -0.54, "energy_gap": 1.26, "violations_by_region": (8, 16, 14, 35, 30, 34, 30, 32, 25, 16),
        "accuracy": {"random_replace": 1.0, "frequency_replace": 1.0, "token_repeat": 0.994,
                     "time_downstep": 1.0, "overall": 0.998},
    },
}
# fmt: on
SCALE_PREFIX = "paper, 512 of 1 024 tokens, GPT-2 judge"
_COMPASS = "tab:monotonicity_aggregate, tab:strategy_accuracy, tab:monotonicity, tab:violations_by_time"
QUOTES = {
    "main": Quote("tab:main", SCALE, MAIN),
    "scaling": Quote("tab:scaling_1_3b", SCALE_LARGE, SCALING),
    "threshold": Quote("tab:threshold_ablation", SCALE, THRESHOLD),
    "overhead": Quote("tab:c2f_wallclock", SCALE_UNJUDGED, OVERHEAD),
    "policy": Quote("tab:policy_comparison", SCALE, POLICY),
    "refinement": Quote("tab:refinement_stats", SCALE_UNJUDGED, REFINEMENT),
    "candidates": Quote("tab:k_ablation", SCALE, CANDIDATES),
    "diversity": Quote("tab:midpoint_diversity", SCALE_UNJUDGED, DIVERSITY),
    "prefix": Quote("tab:dlm_comparison", SCALE_PREFIX, PREFIX),
    "compass": Quote("tab:strategy_accuracy", "paper, 90M compass", COMPASS, _COMPASS),
}
"""The paper's tables, by the command that makes ours."""
