"""The autoregressive model that `tsdfm judge train` made: a judge, and a writer to compare speed with."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tsdfm.engine.distributed import pick_device
from tsdfm.engine.precision import autocast, use_bf16
from tsdfm.errors import UserError
from tsdfm.flow import RowNoise
from tsdfm.judges.base import fingerprint
from tsdfm.judges.causal import CausalJudge, Encoded
from tsdfm.judges.generate import generate
from tsdfm.nn.causal import CausalNet, CausalSpec
from tsdfm.nn.velocity import run_folder
from tsdfm.settings import build
from tsdfm.store.checkpoint import find_checkpoint, load_weights, read_state
from tsdfm.store.manifest import read_manifest
from tsdfm.tokens.tokenizer import Tokenizer, load_tokenizer


@dataclass(frozen=True, kw_only=True)
class Written:
    """What an autoregressive model wrote: `tokens` [n, L] laid out as the rows it was trained on, one pass a token."""

    texts: list[str]
    tokens: Tensor
    nfe: int
    seconds: float


@dataclass(frozen=True)
class CausalModel:
    """A trained network with its tokenizer.

    Example: `load_causal("runs/demo/judge").write(n=8, seed=0).texts`
    """

    spec: CausalSpec
    net: CausalNet
    tokenizer: Tokenizer
    sha256: str
    bf16: bool = False

    @property
    def device(self) -> torch.device:
        return self.net.embedding.weight.device

    @property
    def vocab(self) -> int:
        return self.spec.vocab

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """Texts as tokens; a token ends after the last character it holds the first byte of."""
        starts = self.tokenizer.characters
        return [
            Encoded(ids, np.cumsum(starts[np.array(ids, dtype=np.int64)]).tolist())
            for ids in self.tokenizer.encode_batch(texts)
        ]

    def logits(self, tokens: Tensor) -> Tensor:
        with autocast(self.bf16, self.device):
            out: Tensor = self.net(tokens)
        return out

    def hidden(self, tokens: Tensor) -> Tensor:
        with autocast(self.bf16, self.device):
            return self.net.hidden(tokens)

    def write(
        self,
        n: int = 1,
        seed: int = 0,
        *,
        prefix: str | None = None,
        temperature: float = 1.0,
        top_p: float = 1.0,
        batch: int = 64,
        first: int = 0,
    ) -> Written:
        """Write `n` texts, token by token. Text i depends on the seed and on i alone."""
        if n < 1 or batch < 1:
            raise UserError("the number of samples and the batch must be at least 1")
        start = self.tokenizer.end_of_text
        given = [start, *(self.tokenizer.encode(prefix) if prefix else [])]
        length = self.spec.length - self.spec.anchor
        begin = time.perf_counter()
        parts = []
        for at in range(0, n, batch):
            rows = torch.arange(first + at, first + min(n, at + batch), device=self.device)
            with autocast(self.bf16, self.device):
                tokens = generate(
                    self.net,
                    torch.tensor(given, device=self.device),
                    length,
                    RowNoise(seed, rows),
                    temperature=temperature,
                    top_p=top_p,
                    hold=start if self.spec.anchor else None,
                )
            parts.append(tokens if self.spec.anchor else tokens[:, 1:])
        whole = torch.cat(parts).cpu()
        seconds = time.perf_counter() - begin
        return Written(texts=self.texts(whole), tokens=whole, nfe=length + 1 - len(given), seconds=seconds)

    def texts(self, tokens: Tensor) -> list[str]:
        """The text of each row: up to its end where a row holds one document."""
        if self.spec.anchor:
            return [self.tokenizer.first_document(row) for row in tokens[:, self.spec.anchor :]]
        return [self.tokenizer.decode(row, end="\n\n") for row in tokens]


def load_causal(
    path: Path | str, device: str = "auto", *, which: str = "ema", choose: str = "best", precision: str = "auto"
) -> CausalModel:
    """The model of a judge run (its best checkpoint by held-out likelihood) or of one checkpoint."""
    place = pick_device(device)
    checkpoint = find_checkpoint(Path(path), choose)
    manifest = read_manifest(checkpoint)
    if not isinstance(manifest.get("judge"), dict):
        raise UserError(f"{path} holds no judge (its stage is {manifest.get('stage')!r}): give what `judge train` made")
    spec = build(CausalSpec, manifest["judge"], "judge")
    net = spec.network()
    try:
        net.load_state_dict(load_weights(checkpoint, which))
    except RuntimeError:
        raise UserError(f"the weights in {checkpoint} do not fit its manifest: restore it from a copy") from None
    tokenizer = load_tokenizer(run_folder(checkpoint) / "tokenizer")
    if tokenizer.fingerprint != spec.tokenizer:
        raise UserError(f"the tokenizer of {path} is not the one it was trained with: restore the right one")
    files = read_state(checkpoint)["files"]
    sha256 = files.get(f"{which}.safetensors", files["model.safetensors"])["sha256"]
    net = net.to(place).eval().requires_grad_(False)
    return CausalModel(spec, net, tokenizer, sha256, use_bf16(precision, place))


def inhouse_judge(
    path: str | Path, device: str = "auto", precision: str = "auto", batch: int | None = None
) -> CausalJudge:
    """A judge run as a judge, always labelled `inhouse`.

    Trained on rows of one document, it also scores the end of a text, as the story world does: there, stopping too
    early is a fault like any other.
    """
    model = load_causal(path, device, precision=precision)
    name = run_folder(find_checkpoint(Path(path), "best")).resolve().name
    end = model.tokenizer.end_of_text
    return CausalJudge(
        reader=model,
        name=f"in-house {name}",
        fingerprint=fingerprint("inhouse", name, model.sha256),
        precision="bf16" if model.bf16 else "fp32",
        context=model.spec.length,
        start=end,
        end=end if model.spec.anchor else None,
        batch=batch,
    )
