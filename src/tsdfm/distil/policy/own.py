"""The law of the student's own texts, as far as a causal network can tell it: q(x_i | x_<i).

It begins as an in-house judge and learns every text that the student writes. Its weights and its optimiser are part of
the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from tsdfm.distil.policy.credit import total
from tsdfm.engine.distributed import Processes, average_gradients
from tsdfm.engine.optim import Optimiser, lr_at
from tsdfm.engine.runner import Compiled, body_of, wrapped
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.engine.task import Context
from tsdfm.judges.causal import Spelled
from tsdfm.judges.inhouse import CausalModel
from tsdfm.kernels.token_logs import token_logs


class Own:
    """The network, its optimiser, and one step of its training. `lr` and `warmup` are its own."""

    def __init__(self, start: CausalModel, loop: LoopSettings, *, lr: float, warmup: int) -> None:
        """It starts as `start`, and without dropout: what it says is a probability, and part of the reward."""
        self.start, self.net, self.loop = start, start.net.requires_grad_(True), loop
        for part in self.net.modules():
            if isinstance(part, nn.Dropout):
                part.p = 0.0
        self.optim = OptimSettings(lr=lr, warmup=warmup, floor=1.0, beta2=0.99, weight_decay=0.0)

    def bind(self, context: Context) -> None:
        """Move to the device, compile where the student is compiled, and make the optimiser."""
        self.world: Processes = context.world
        self.net.to(self.world.device).train()
        self.runner = self.net
        if self.loop.compile:
            self.runner = wrapped(self.net, Compiled(body_of(self.net), "each"))
        self.optimiser = Optimiser(self.net, self.optim)

    def rows(self, texts: Sequence[str]) -> tuple[Tensor, list[list[int]]]:
        """Texts as rows [n, L] of the network, up to their ends and filled up with them, and where tokens end."""
        length, over = self.start.spec.length, self.start.tokenizer.end_of_text
        made = self.start.encode(texts)
        rows = torch.full((len(texts), length), over)
        for row, one in zip(rows, made, strict=True):
            kept = one.ids[: length - 1]
            row[1 : 1 + len(kept)] = torch.tensor(kept, dtype=torch.int64)
        return rows.to(self.world.device), [one.ends for one in made]

    def learn(self, texts: Sequence[str], step: int) -> list[Spelled]:
        """What it says of each text, as it was before a step on them."""
        rows, ends = self.rows(texts)
        sizes = [min(len(one) + 1, rows.shape[1] - 1) for one in ends]  # the end too, where it fits
        counts = torch.tensor(sizes, device=rows.device)
        learned = torch.arange(rows.shape[1] - 1, device=rows.device) < counts[:, None]
        with torch.enable_grad():
            hidden = self.runner.hidden(rows[:, :-1])
            logs = token_logs(hidden.flatten(0, 1), self.net.linear, rows[:, 1:].reshape(-1, 1)).view(learned.shape)
            loss: Tensor = -torch.where(learned, logs, 0.0).sum() / total(counts.sum(), self.world) * self.world.size
            loss.backward()  # type: ignore[no-untyped-call]
        average_gradients(self.net, self.world)
        self.optimiser.step(lr_at(step, self.loop.steps, self.optim))
        torch.clear_autocast_cache()  # else the rest of this step would use the casts of the weights before it
        costs = -logs.detach().cpu()
        return [Spelled(end, cost[:size], closed=True) for end, cost, size in zip(ends, costs, sizes, strict=True)]

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student."""
        return {"own": self.net.state_dict(), "own_optim": self.optimiser.state()}
