"""Reinforce: a few-step student that learns how likely a causal model finds the texts it writes.

The student writes in k passes: z_0 is noise, q_j(z_{j+1} | z_j) a step of its jump, x = z_k the text, q(x) their law.
What is wanted is the smallest

    KL(q ‖ p) = E_q[log q(x) − log p(x)],      p(x) = Π_i p(x_i | x_<i), a judge: a causal language model

p is known exactly. log q(x) is not, but a causal network beside the student learns it from the texts that it writes
(`distil.policy.own`). So each place of a text has a reward

    r_i = log p(x_i | x_<i) − entropy · log q(x_i | x_<i) − width · log own(x_i)/data(x_i)

and the steps learn by the policy gradient (REINFORCE): from the state before one of the passes, M texts go on, and
what a token of that pass is worth is compared among them (`distil.policy.credit`). Where q is p, with `entropy` = 1,
all rewards are 0. A few-step student cannot be p, and a reverse divergence prefers short and plain texts to wrong ones.
The last term holds against it: no token, nor the end of a text, shall be written more often than the data has it.

A text ends at its first end-of-text. Neither p nor q reads what stands behind it in a row. Any token there but
end-of-text costs `clip`, so that fewer come to stand there.

Some texts may go on from the beginning of a real one (`beginnings`), so that the student learns to take beginnings up.
They are given: neither the student nor q learns them.

The judge may read tokens of its own: its likelihoods are shared out by characters (`distil.policy.reading`). With
several `passes` q is the law of all their texts together. Policy gradients of few-step students towards other rewards
are DiDi-Instruct's (a discriminator) and R-MMD's (moments).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tsdfm.distil.matching.settings import WatchSettings
from tsdfm.distil.settings import DistilSettings
from tsdfm.engine.settings import LoopSettings, OptimSettings
from tsdfm.errors import UserError
from tsdfm.methods import DistilMethod, jump_for
from tsdfm.settings import ModelPath, option, required

if TYPE_CHECKING:
    from tsdfm.distil.policy.task import PolicyTask
    from tsdfm.engine.distributed import Processes
    from tsdfm.judges.causal import CausalJudge
    from tsdfm.judges.inhouse import CausalModel
    from tsdfm.nn.velocity import VelocitySpec
    from tsdfm.tokens.rows import TokenRows


@dataclass(frozen=True, kw_only=True)
class ReinforceLoop(LoopSettings):
    """The loop's settings: a row is a state that several texts go on from."""

    batch: int = option(16, "states per optimiser step, over all processes together")


@dataclass(frozen=True, kw_only=True)
class ReinforceOptim(OptimSettings):
    """The student's optimiser."""

    lr: float = option(1e-4, "peak learning rate")
    beta2: float = option(0.99, "decay of AdamW's second moment")
    weight_decay: float = option(0.0, "decay of matrices; vectors, norms and embeddings have none")
    warmup: int = option(40, "steps of linear warm-up, those in which q learns alone among them")
    ema: float = option(0.98, "decay of the averaged weights; 0 turns them off")


@dataclass(frozen=True, kw_only=True)
class ReinforceSettings(DistilSettings):
    """Reinforce: a few-step model whose texts a causal model shall find likely."""

    judge: str = required("the causal model p: storyteller:FOLDER, hub:NAME, a model's folder, or a judge run")
    own: ModelPath = required("run of `tsdfm judge train` on the same tokens, which q begins as")
    dropout: float | None = option(0.0, "must be 0: the student learns from what it wrote", low=0, high=0)
    passes: tuple[int, ...] = option((8,), "numbers of passes to write in: each step of the training takes one", low=1)
    late: float | None = option(
        None, "power of a late grid to write along, above 1 long steps first; none is as init_from does", low=1, high=16
    )
    again: int = option(0, "how many of the passes revise the finished text; uniform source alone", low=0)
    first: int = option(3, "first of the passes that learn; of fewer passes, the last one alone", low=1)
    texts: int = option(4, "M: texts that go on from each state", low=2)
    beginnings: float = option(0.0, "share of rows that go on from the beginning of a real text", low=0, high=1)
    gamma: float = option(0.85, "γ: how much of a reward reaches a token for each place between them", low=0, high=1)
    entropy: float = option(1.0, "weight of log q: above 1 for more varied texts, below it for likelier ones", low=0)
    width: float = option(0.0, "weight of log(own/data) of the pooled token frequencies in the reward", low=0)
    clip: float = option(8.0, "largest reward of a place, and what a token behind the end costs, in nats", above=0)
    alone: int = option(20, "first steps of the training, in which q learns alone", low=0)
    own_lr: float = option(4e-4, "learning rate of q; it must keep up with the student", above=0)
    own_warmup: int = option(20, "steps of q's linear warm-up", low=0)
    watch: WatchSettings = option(WatchSettings(), "the watch for collapse")
    loop: ReinforceLoop = option(ReinforceLoop(), "the training loop")
    optim: ReinforceOptim = option(ReinforceOptim(), "the optimiser")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.passes:
            raise UserError("passes takes at least one number")
        if self.again and self.late is None:
            raise UserError("revisions repeat the last step of a late grid: give late too, --late 2 say")
        if self.dropout is None:
            raise UserError("reinforce learns from what the student wrote: set dropout to 0")
        if self.alone >= self.loop.steps:
            raise UserError("alone leaves the student no step to learn in: lower it, or raise loop.steps")
        if self.loop.micro is not None:
            raise UserError("reinforce compares the texts of a whole step: leave loop.micro out")
        if self.loop.parallel == "fsdp":
            raise UserError("a network beside the student works with one process or ddp, not with fsdp")


class Reinforce(DistilMethod):
    """Policy gradients towards a causal model."""

    name, title = "reinforce", "Reinforce"
    help = "few-step student, by how likely a causal model finds its texts"
    settings: ClassVar[type] = ReinforceSettings
    keeps = ("time", "clock", "step_size", "logits", "jump")

    def told(self, settings: ReinforceSettings, origin: VelocitySpec) -> dict[str, Any]:
        late, again = settings.late, f":{settings.again}" if settings.again else ""
        return super().told(settings, origin) | ({} if late is None else {"jump": f"late:{late!r}{again}"})

    def task(
        self, settings: ReinforceSettings, spec: VelocitySpec, valid: TokenRows | None, world: Processes
    ) -> PolicyTask:
        from tsdfm.distil.matching.watch import Watch
        from tsdfm.distil.policy.own import Own
        from tsdfm.distil.policy.task import PolicyTask
        from tsdfm.flow.jump import LeaveJump
        from tsdfm.flow.solver import steps_of

        jump = jump_for("auto", spec)
        if not isinstance(jump, LeaveJump) or spec.logits not in ("plain", "subs") or spec.latent:
            raise UserError(
                f"reinforce needs the probabilities of a step, which {settings.init_from} (logits {spec.logits}, jump "
                f"{spec.jump or 'auto'}{', a latent number' if spec.latent else ''}) does not give: start from a dfm, "
                "fs-dfm, ts-dfm, idlm or mdlm model"
            )
        if not spec.anchor:
            raise UserError("reinforce reads whole texts: make the tokens with --layout document or prompt")
        for steps in settings.passes:
            steps_of(jump, steps)
        own = Own(self.own(settings), settings.loop, lr=settings.own_lr, warmup=settings.own_warmup)
        judge, watch = self.judge(settings, world), Watch(settings.watch)
        return PolicyTask(settings, spec, valid, self.bound(), jump=jump, judge=judge, own=own, watch=watch)

    def judge(self, settings: ReinforceSettings, world: Processes) -> CausalJudge:
        """p. In a training in bf16 it reads in bf16."""
        from tsdfm.judges.causal import CausalJudge
        from tsdfm.judges.load import judge_from

        judge = judge_from(settings.judge, str(world.device), settings.loop.precision)
        if not isinstance(judge, CausalJudge):
            raise UserError(f"{settings.judge} says nothing of single tokens: give a causal model as the judge")
        return judge

    def own(self, settings: ReinforceSettings) -> CausalModel:
        """What q begins as."""
        from tsdfm.judges.inhouse import load_causal
        from tsdfm.nn.velocity import check_rows
        from tsdfm.tokens.rows import TokenRows

        start = load_causal(settings.own, "cpu")
        check_rows(start.spec, TokenRows(settings.tokens, "train"), "own", "train that judge on these tokens")
        return start

    def inputs(self, settings: ReinforceSettings) -> dict[str, Path]:
        folder = Path(settings.judge.removeprefix("storyteller:"))
        return {"own": settings.own} | ({"judge": folder} if folder.exists() else {})


METHOD = Reinforce()
