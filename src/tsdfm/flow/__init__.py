"""The mathematics of discrete flow matching. Takes callables, knows no network.

schedule   κ(t)                          source   what x_0 is: random tokens or [MASK]
path       x_t between x_0 and x_1       noise    random numbers that belong to a row
draw       tokens from logits            jump     one step from t to t + h
solver     many steps, from 0 to 1       loss     cross-entropy, generalised KL
elbo       a bound of −log p(text)      guidance classifier-free, by what is given
"""

from tsdfm.flow.draw import draw, draw_other, shape_logits
from tsdfm.flow.elbo import FLOW_BOUND, Bound, bits_per_character, elbo_rows
from tsdfm.flow.guidance import ClassifierFree
from tsdfm.flow.jump import JUMPS, CumulativeJump, EulerJump, Jump, LeaveJump, Steps, jump_from, reads_of
from tsdfm.flow.loss import cross_entropy, generalised_kl
from tsdfm.flow.noise import Noise, RowNoise, row_times, uniform
from tsdfm.flow.path import interpolate
from tsdfm.flow.schedule import Cosine, Geometric, Polynomial, Schedule, schedule_from, sigma
from tsdfm.flow.solver import Solution, Step, check_grid, grid, mean_passes, solve, steps_of
from tsdfm.flow.source import Mask, Source, Uniform, source_from
from tsdfm.flow.walk import Limits, Model, reads_some
from tsdfm.kernels.inverse import Other

__all__ = [
    "FLOW_BOUND",
    "JUMPS",
    "Bound",
    "ClassifierFree",
    "Cosine",
    "CumulativeJump",
    "EulerJump",
    "Geometric",
    "Jump",
    "LeaveJump",
    "Limits",
    "Mask",
    "Model",
    "Noise",
    "Other",
    "Polynomial",
    "RowNoise",
    "Schedule",
    "Solution",
    "Source",
    "Step",
    "Steps",
    "Uniform",
    "bits_per_character",
    "check_grid",
    "cross_entropy",
    "draw",
    "draw_other",
    "elbo_rows",
    "generalised_kl",
    "grid",
    "interpolate",
    "jump_from",
    "mean_passes",
    "reads_of",
    "reads_some",
    "row_times",
    "schedule_from",
    "shape_logits",
    "sigma",
    "solve",
    "source_from",
    "steps_of",
    "uniform",
]
