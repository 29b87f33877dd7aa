"""Small flows, teachers and kits for the compass tests."""

import torch

from tsdfm.compass.frequency import frequency_bins
from tsdfm.compass.negatives import Kit, Negatives
from tsdfm.compass.network import CompassSpec, spec_from
from tsdfm.compass.settings import NegativeSettings
from tsdfm.compass.states import walk
from tsdfm.flow import RowNoise
from tsdfm.nn.settings import Shape
from tsdfm.nn.velocity import Velocity, VelocitySpec

VOCAB, LENGTH, ANCHOR = 40, 24, 2
SHAPE = Shape(width=16, depth=2, heads=2, cond=8, hidden=32, dropout=0.0, checkpoint=False)


def velocity_spec(source="uniform", **over):
    made = {"shape": SHAPE, "vocab": VOCAB, "source": source, "schedule": "poly:1", "length": LENGTH}
    return VelocitySpec(**{**made, "anchor": ANCHOR, "tokenizer": "abc", **over})


def make_teacher(source="uniform", seed=0, **over):
    """A float64 velocity network whose logits are far from flat."""
    spec = velocity_spec(source, **over)
    torch.manual_seed(seed)
    net = spec.network().double()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return Velocity(spec, net.eval().requires_grad_(False), spec.flow_source(), spec.flow_schedule())


def compass_spec(source="uniform") -> CompassSpec:
    return spec_from(velocity_spec(source), SHAPE, "nce")


def make_counts(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(VOCAB, generator=generator) ** 4 * 10_000).long().numpy()


def make_negatives(source="uniform", teacher=None, **settings):
    bins = frequency_bins(make_counts(), 5)
    kit = Kit(velocity_spec(source).flow_source(), bins, NegativeSettings(**settings), teacher)
    return Negatives(kit)


def make_walk(rows, source="uniform", seed=0):
    """Rows of random text, the same for the same row numbers."""
    spec = velocity_spec(source)
    noise = RowNoise(seed, rows, stream=99)
    x_1 = (noise.uniform((len(rows), LENGTH)) * VOCAB).long()
    return walk(x_1, spec.flow_source(), spec.flow_schedule(), ANCHOR, RowNoise(seed, rows))
