"""Training by what becomes of a step: some passes, one step that learns, several ways to go on, a judge that reads.

    z        a text that the student is writing, at the start of pass j of k
    y, x     M times: y the state after that pass, x the text that the rest of the passes makes of it
    r_i      = log p(x_i | x_<i) − entropy · log q(x_i | x_<i) − width · log own(x_i)/data(x_i),
             p a judge, q the student's own texts (`policy.own`), own and data how often they have a token;
             behind the end of its text, where neither p nor q reads, any token but end-of-text has −clip
    loss     −mean of A_i · log q_j(y_i | z),   A from `policy.credit`

Shapes: G rows of a batch, n = G·M texts of L places.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tsdfm.distil.matching.watch import Watch
from tsdfm.distil.matching.width import Width
from tsdfm.distil.policy.credit import Usual, advantages, returns, total
from tsdfm.distil.policy.own import Own
from tsdfm.distil.policy.reading import places, stories_in, written
from tsdfm.distil.traces import Looks
from tsdfm.engine.distributed import Processes
from tsdfm.engine.task import Context
from tsdfm.flow import Bound, RowNoise, solve
from tsdfm.flow.jump import LeaveJump
from tsdfm.flow.solver import steps_of
from tsdfm.judges.causal import CausalJudge
from tsdfm.kernels.token_logs import token_logs
from tsdfm.nn.velocity import VelocitySpec
from tsdfm.teacher.task import BoundTask
from tsdfm.tokens.loader import Batch
from tsdfm.tokens.rows import TokenRows

PLAN_STREAM, TRUNK_STREAM, TEXT_STREAM = 17, 18, 19  # which pass learns, the passes before it, and those after it
BEGIN_STREAM = 20  # how much of a real text is given


@dataclass(frozen=True)
class Tried:
    """A step that learns: states z [G, L] at t, h [G], what it led to y [n, L], and the texts x [n, L] that came of it.

    `last`: the step is the last one. `given` [n, L] is what a text holds of its prompt, or of a real beginning.
    """

    z: Tensor
    t: Tensor
    h: Tensor
    y: Tensor
    x: Tensor
    last: bool
    given: Tensor


class PolicyTask(BoundTask):
    """What the training loop asks for. `jump` is what the student writes by."""

    prompts: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    def __init__(
        self,
        settings: Any,
        spec: VelocitySpec,
        valid: TokenRows | None,
        bound: Bound | None,
        *,
        jump: LeaveJump,
        judge: CausalJudge,
        own: Own,
        watch: Watch,
    ) -> None:
        """`settings` has what `methods.reinforce` adds to those of every student."""
        super().__init__(settings, spec, valid, bound)
        self.asked, self.jump, self.judge, self.own, self.watch = settings, jump, judge, own, watch
        self.tokenizer = own.start.tokenizer
        self.usual, self.width = Usual(spec.length), Width(settings.width, spec.vocab)

    def bind(self, context: Context) -> None:
        super().bind(context)
        self.own.bind(context)
        self.watch.bind(context, self.model, self.own)
        self.usual.bind(context.world)
        self.width.bind(context.world)

    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """What a checkpoint holds besides the student."""
        return {**self.own.parts(), **self.watch.parts(), **self.width.parts(), "usual": self.usual.parts()}

    def loss(self, model: nn.Module, batch: Batch, step: int) -> tuple[Tensor, Mapping[str, Tensor]]:
        self.watch.look(step)
        tried, data = self.tries(model, batch), batch.tokens
        texts, given = (every[:: self.asked.texts] for every in (tried.x, tried.given))
        counted = self.written_part(texts, given), self.written_part(data, given)
        self.watch.add(texts, data, self.spec.vocab, counted)
        worth, counts, told = self.judged(tried, data, step)
        with torch.set_grad_enabled(step >= self.asked.alone):
            logs = torch.where(counts, self.logs(model, tried), 0.0)
            loss = -(worth * logs).sum() / total(counts.sum(), self.world) * self.world.size
        return loss.float(), {**told, **self.watch.found}

    @torch.no_grad()
    def judged(self, tried: Tried, rows: Tensor, step: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """What each place is worth [n, L], where that is known [n, L], and what was measured; `rows` are real ones."""
        asked, device = self.asked, tried.x.device
        stories = stories_in(tried.x, self.tokenizer, self.spec.anchor)
        texts = [story.text for story in stories]
        held = tried.given[:, self.spec.anchor :].long().cumprod(-1).sum(-1).tolist()
        known = [story.after(places) for story, places in zip(stories, held, strict=True)]
        p, q = (
            places(stories, said, self.spec.length, self.spec.anchor)
            for said in (self.judge.spelled(texts), self.own.learn(texts, step, known))
        )
        free, over = ~tried.given, tried.x == self.tokenizer.end_of_text
        counts = (p.read & q.read).to(device) & free
        log_p, log_q = p.values.to(device), q.values.to(device)
        reward = (log_p - asked.entropy * log_q).clamp(-asked.clip, asked.clip)
        centred = self.usual.less(reward, counts, over)
        centred = torch.where(counts, centred + self.rarer(tried, rows), 0.0)
        told = measured(log_p, log_q, counts, self.world)
        inside = self.written_part(tried.x)
        stray = free & ~inside & ~over
        told["stray"] = stray.any(-1).double().mean()
        # Where some of the texts of a state have such a token all are compared, and so is the end that left it behind.
        there = stray.view(-1, asked.texts, stray.shape[-1]).any(1).repeat_interleave(asked.texts, 0)
        learned = counts | free & (there | inside & over & stray.any(-1, keepdim=True))
        found = returns(torch.where(stray, -asked.clip, centred), asked.gamma, before=not tried.last)
        return advantages(found, asked.texts, learned, counts, self.world), learned, told

    def rarer(self, tried: Tried, rows: Tensor) -> Tensor | float:
        """width · log(data/own) of each place's token [n, L]; the frequencies are those of what is written."""
        if not self.width.weight:
            return 0.0
        given = tried.given[:: self.asked.texts]
        self.width.add(tried.x[self.written_part(tried.x, tried.given)], rows[self.written_part(rows, given)])
        return self.width.less()[tried.x]

    def written_part(self, x: Tensor, given: Tensor | None = None) -> Tensor:
        """The places [n, L] of rows x that are written, up to their ends, and not given."""
        places = written(x, self.tokenizer.end_of_text, self.spec.anchor)
        return places if given is None else places & ~given

    @torch.no_grad()
    def tries(self, model: nn.Module, batch: Batch) -> Tried:
        """One state of each row of a batch, and texts that went on from it."""
        asked, first_row = self.asked, batch.on_host()[0][:1] - self.world.rank * len(batch.rows)
        plan = RowNoise(self.seed, first_row, PLAN_STREAM)  # alike in all processes
        k = asked.passes[int(plan.uniform((1,)) * len(asked.passes))]
        first = min(asked.first, k) - 1
        j = first + int(plan.uniform((1,)) * (k - first))
        steps, looks = steps_of(self.jump, k), Looks(model, self.spec)
        given = self.given(batch)
        trunk = RowNoise(self.seed, batch.rows, TRUNK_STREAM)
        z = torch.where(
            given, batch.tokens, self.source.draw(given.shape, trunk, given.device, self.tokenizer.end_of_text)
        )
        if j:
            held = batch.tokens
            z = solve(looks, z, steps[:j], self.jump, trunk, given=given, given_tokens=held).tokens
        many, each = asked.texts, torch.arange(asked.texts, device=batch.rows.device)
        noise = RowNoise(self.seed, (batch.rows[:, None] * many + each).flatten(), TEXT_STREAM)
        states: list[Tensor] = []

        def look(passes: int, t: float, x: Tensor) -> None:
            if not states:
                states.append(x.clone())

        begun, given, held = (x.repeat_interleave(many, 0) for x in (z, given, batch.tokens))
        x = solve(looks, begun, steps[j:], self.jump, noise, given=given, given_tokens=held, on_state=look).tokens
        when = torch.tensor([steps[j][0], steps[j][1] - steps[j][0]], dtype=torch.float64, device=z.device)
        t, h = when[:, None].expand(2, len(z))
        return Tried(z, t, h, states[0], x, j + 1 == k, given)

    def given(self, batch: Batch) -> Tensor:
        """What the texts of each row hold from the start, bool [G, L]: in some rows up to half of a real text too."""
        given = batch.known(self.spec.anchor).expand_as(batch.tokens)
        if not self.asked.beginnings:
            return given
        free = ~given
        size = (written(batch.tokens, self.tokenizer.end_of_text, self.spec.anchor) & free).sum(-1)
        which, part = RowNoise(self.seed, batch.rows, BEGIN_STREAM).uniform((len(size), 2)).unbind(-1)
        shown = torch.where(which < self.asked.beginnings, (part * size / 2).ceil(), 0)
        return given | (free & (free.cumsum(-1) <= shown[:, None]))

    def logs(self, model: nn.Module, tried: Tried) -> Tensor:
        """log q_j(y | z) of each place [n, L], float64; 0 at the anchor."""
        many, anchor = len(tried.y) // len(tried.z), self.spec.anchor
        z, y = tried.z[:, anchor:], tried.y[:, anchor:].reshape(len(tried.z), many, -1)
        tokens = torch.cat([z[:, None], y], dim=1).movedim(1, -1).clamp(max=self.spec.vocab - 1)  # [G, L', 1 + M]
        said: Tensor = model(
            tried.z,
            *self.spec.told(tried.t.float(), tried.h.float()),
            then=lambda hidden, head: token_logs(hidden[:, anchor:].flatten(0, 1), head, tokens.flatten(0, 1)),
        )
        logs = said.view(*z.shape, -1)
        if self.spec.logits == "subs":  # what has left [MASK] is sure to stay, whatever the network says of it
            logs = torch.where((z < self.spec.vocab)[..., None], 0.0, logs)
        found = [self.jump.log_step(z, y[:, m], logs[..., 0], logs[..., 1 + m], tried.t, tried.h) for m in range(many)]
        free = torch.stack(found, dim=1).flatten(0, 1)
        return torch.cat([torch.zeros_like(tried.y[:, :anchor], dtype=free.dtype), free], dim=1)


def measured(log_p: Tensor, log_q: Tensor, counts: Tensor, world: Processes) -> dict[str, Tensor]:
    """Of a batch's texts: −log p a place and log q − log p a text, in nats, and places a text.

    Their mean over processes is that of all texts.
    """
    many, texts = total(counts.sum(), world) / world.size, len(counts)
    nats = -torch.where(counts, log_p, 0.0).sum() / many
    gap = torch.where(counts, log_q - log_p, 0.0).sum() / texts
    return {"nats": nats, "gap": gap, "places": many / texts}
