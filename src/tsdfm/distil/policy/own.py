"""The law of the student's own texts, as far as a causal network can tell it: q(x_i | x_<i).

It begins as an in-house judge and learns every text that the student writes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tsdfm.distil.beside import Beside
from tsdfm.distil.policy.credit import total
from tsdfm.engine.settings import LoopSettings
from tsdfm.judges.causal import Spelled
from tsdfm.judges.inhouse import CausalModel
from tsdfm.kernels.token_logs import token_logs
from tsdfm.nn.causal import CausalNet


class Own(Beside[CausalNet]):
    """The network and what it learns."""

    name = "own"

    def __init__(self, start: CausalModel, loop: LoopSettings, *, lr: float, warmup: int) -> None:
        """It starts as `start`, and without dropout: what it says is a probability, and part of the reward."""
        super().__init__(start.net.requires_grad_(True), loop, lr=lr, warmup=warmup)
        self.start = start
        for part in self.net.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, list[list[int]]]:
        """Texts as rows [n, L] of the network, up to their ends and filled up with them, and where tokens end."""
        length, over = self.start.spec.length, self.start.tokenizer.end_of_text
        made = self.start.encode(texts)
        rows = torch.full((len(texts), length), over)
        for row, one in zip(rows, made, strict=True):
            kept = one.ids[: length - 1]
            row[1 : 1 + len(kept)] = torch.tensor(kept, dtype=torch.int64)
        return rows.to(self.world.device), [one.ends for one in made]

    def learn(self, texts: Sequence[str], step: int, given: Sequence[int]) -> list[Spelled]:
        """What it says of each text, as it was before a step on what follows the `given` characters of each."""
        rows, ends = self.rows(texts)
        sizes = [min(len(one) + 1, rows.shape[1] - 1) for one in ends]  # the end too, where it fits
        skipped = [bisect_right(one, known) for one, known in zip(ends, given, strict=True)]
        first, last = torch.tensor([skipped, sizes], device=rows.device)[..., None]
        place = torch.arange(rows.shape[1] - 1, device=rows.device)
        learned = (first <= place) & (place < last)
        with torch.enable_grad():
            hidden = self.runner.hidden(rows[:, :-1])
            logs = token_logs(hidden.flatten(0, 1), self.net.linear, rows[:, 1:].reshape(-1, 1)).view(learned.shape)
            loss: Tensor = -torch.where(learned, logs, 0.0).sum() / total(learned.sum(), self.world) * self.world.size
            loss.backward()  # type: ignore[no-untyped-call]
        self.step(step)
        costs = -logs.detach().cpu()
        return [Spelled(end, cost[:size], closed=True) for end, cost, size in zip(ends, costs, sizes, strict=True)]
