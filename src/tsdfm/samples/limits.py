"""What would take days, or more memory than there is, is refused before it begins, and the refusal says what it takes.

The least time is reckoned with the work of the passes, 2·P·n·L·steps floating-point operations for P weights, and with
more operations a second than a device has; and no pass is shorter than 0.1 ms. So nothing that would end in time is
refused.
"""

from __future__ import annotations

from tsdfm import terminal
from tsdfm.errors import UserError
from tsdfm.machine import check_memory
from tsdfm.nn.ddit import flops_per_token
from tsdfm.nn.velocity import VelocitySpec

SPEED = {"cpu": 1e12, "cuda": 1e15}  # operations a second
PASS, DAY = 1e-4, 86_400.0  # seconds of the shortest pass, and of a day


def check_amount(
    spec: VelocitySpec, device: str, texts: int, steps: int, *, states: bool = False, long: bool = False
) -> None:
    """Refuse texts that would not fit into memory (with every state, if `states`), or take more than a day.

    `long` lifts the limit of time. What would take more than an hour says so.
    """
    tokens = texts * spec.length
    kept = tokens * 8 * (1 + 2 * steps * states) + steps * 8
    words = f"{texts:,} texts of {spec.length:,} tokens in {steps:,} passes"
    check_memory(2 * kept, words, "ask for fewer, or for some at a time")
    work = tokens * steps * flops_per_token(spec.shape, spec.vocab, spec.length)
    days = max(work / SPEED.get(device, SPEED["cuda"]), steps * PASS) / DAY
    if days > 1 and not long:
        raise UserError(f"{words} would take {days:,.0f} days or more: ask for less, or lift the limit (long, --long)")
    if days > 1 / 24:
        terminal.say(f"{words} take {24 * days:,.0f} hours or more")
