"""A trained compass, for use by other stages and by users."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tsdfm.compass.network import CompassSpec, EnergyNet
from tsdfm.engine.distributed import pick_device
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.errors import UserError
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.settings import build
from tsdfm.store.bundle import find_weights

ROOM = {"cpu": 1 << 27, "cuda": 1 << 32}  # bytes of activations of one call
COPIES = 40  # bytes a token and width unit that a block keeps alive at once, about


@dataclass(frozen=True)
class Compass:
    """E(x): lower is better. Frozen: its weights never get a gradient.

    Example: `load_compass(Path("runs/demo/compass-uniform")).energy(tokens)` gives [B] for tokens [B, L].
    """

    spec: CompassSpec
    net: EnergyNet
    checkpoint: Path | None = None
    sha256: str = ""
    bf16: bool = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.net.parameters()).device

    @torch.no_grad()
    def energy(self, tokens: Tensor) -> Tensor:
        """Energies [B], float32 (float64 for a float64 network), of token states [B, L], as many as you like."""
        with autocast(self.bf16, self.device):
            return torch.cat([self.net(part) for part in self._parts(tokens)])

    def slopes(self, tokens: Tensor) -> Tensor:
        """∂E/∂e_i [B, L, D] by the embedding e_i of every position of token states [B, L], as many as you like."""
        with autocast(self.bf16, self.device), torch.enable_grad():
            return torch.cat([self._slopes(part) for part in self._parts(tokens, alive=self.spec.shape.depth)])

    def _slopes(self, tokens: Tensor) -> Tensor:
        embedded = self.net.embedding(tokens).detach().requires_grad_()
        found: Tensor = torch.autograd.grad(self.net.of(embedded).sum(), embedded)[0]
        return found

    def _parts(self, tokens: Tensor, alive: int = 1) -> list[Tensor]:
        """Token states [B, L] in parts that fit, where as many blocks keep what they made."""
        if tokens.ndim != 2:
            raise UserError(f"the compass scores tokens of shape [B, L], not {tuple(tokens.shape)}")
        room = ROOM.get(self.device.type, ROOM["cpu"])
        size = max(1, room // (tokens.shape[1] * self.spec.shape.width * COPIES * alive))
        return [part.to(self.device) for part in torch.split(tokens, size)]

    def match(self, other: VelocitySpec, what: str) -> None:
        """Refuse a student or teacher with another vocabulary, tokenizer or source."""
        self.spec.match(other, what)


def lean(compass: Compass) -> Compass:
    """A frozen compass whose blocks hold their matrices in bf16, which a bf16 pass would make of them every time."""
    net = copy.deepcopy(compass.net)
    for block in net.blocks:
        for layer in block.modules():
            if isinstance(layer, nn.Linear):
                layer.to(torch.bfloat16)
    return replace(compass, net=net)


def spec_in(manifest: dict[str, Any], path: Path) -> CompassSpec:
    """What a manifest, which lies at `path`, says the compass is."""
    if not isinstance(manifest.get("compass"), dict):
        raise UserError(f"{path} holds no compass (its stage is {manifest.get('stage')!r}): give what `compass` made")
    return build(CompassSpec, manifest["compass"], "compass")


def load_compass(
    path: Path | str,
    device: torch.device | str = "auto",
    *,
    which: str = "ema",
    choose: str = "best",
    precision: str = "auto",
) -> Compass:
    """The compass of a run (its best or newest checkpoint), of one checkpoint or of a bundle, frozen, ready to score.

    `tsdfm-stories` is the one that came with tsdfm.
    """
    place = pick_device(device) if isinstance(device, str) else device
    found = find_weights(Path(path), "compass", which=which, choose=choose)
    spec = spec_in(found.manifest, found.place)
    net = spec.network()
    try:
        net.load_state_dict(found.weights())
    except RuntimeError:
        raise UserError(f"the weights in {found.place} do not fit its manifest: restore it from a copy") from None
    net = net.to(place).eval().requires_grad_(False)
    return Compass(spec, net, found.place, found.sha256, use_bf16(precision, place))
