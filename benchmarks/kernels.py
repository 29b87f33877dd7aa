"""Kernels against their references and against the floor: `python -m benchmarks kernels`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.harness import Clock, Estimate, Ledger, guarded, quick, say, world
from tsdfm import kernels
from tsdfm.kernels.head import padded
from tsdfm.settings import option

BANDWIDTH = 4.8e12  # bytes a second, an H200's

Table = Literal["draw", "losses", "head", "attention"]


@dataclass(frozen=True, kw_only=True)
class KernelBenchmark:
    """What to time."""

    vocab: int = option(50257, "|V|")
    width: int = option(768, "width of the hidden states")
    rows: int = option(4096, "rows of logits of a draw")
    positions: int = option(8192, "positions of a loss")
    limit: float = option(120.0, "seconds at most: what does not fit is left out")
    device: str = option("auto", "auto, cpu or cuda")
    tables: tuple[Table, ...] = option(get_args(Table), "which tables")
    checked: bool = option(False, "the kernels have been checked already")
    out: Path | None = option(None, "folder for the tables as JSON")


def run(settings: KernelBenchmark) -> None:
    """Check, then time."""
    device, clock = world(settings.device).device, Clock(settings.limit)
    if not settings.checked:
        check(device)
    if not kernels.on(torch.empty(0, device=device), "draw"):
        say("no kernels run here: rows that are called kernel are their references")
    for name, part in {"draw": draws, "losses": losses, "head": heads, "attention": attention}.items():
        if name in settings.tables and clock.allows(5.0, name):
            place = settings.out and settings.out / f"kernel-{name}.json"
            sheet = Sheet(Ledger(f"kernels: {name}", ("case",), device, place, goes_on=False), clock)
            guarded(name, partial(part, settings, device, sheet))
            sheet.table.show()


@dataclass
class Sheet:
    """A table in the making: every row is kept at once, and what does not fit any more is named."""

    table: Ledger
    clock: Clock
    cost: Estimate = field(default_factory=lambda: Estimate(2.0))

    def fits(self, what: str, seconds: float | None = None) -> bool:
        """Is there time? For `seconds`, or else for what the last row took."""
        if self.clock.allows(self.cost.seconds if seconds is None else seconds, what):
            return True
        self.table.leave(what)
        return False

    def add(
        self,
        name: str,
        work: Callable[[], Any],
        repeats: int = 15,
        *,
        floor: float | None = None,
        flops: float | None = None,
    ) -> None:
        """Time a case against the milliseconds it cannot be below, or by its operations a second."""
        if not self.fits(name):
            return
        with self.cost.taking():
            spent = guarded(name, partial(quick, work, self.table.device, repeats))
        row: dict[str, Any] = {"case": name, "ms": spent}
        if flops is None:
            row |= {"floor ms": floor, "of floor": spent and floor and floor / spent}
        else:
            row |= {"TFLOP/s": spent and flops / spent / 1e9}
        self.table.add([row])


# ── are they right? ─────────────────────────────────────────────────────────────────────────────────────────────────


def check(device: torch.device) -> None:
    """Compare each kernel with its reference in float64; one that fails or is wrong is switched off, loudly."""
    for name, test in {"draw": check_draw, "rows": check_rows, "noise": check_noise}.items():
        verdict = guarded(f"check of kernel {name}", partial(test, device))
        if verdict is not True:
            kernels.switch_off(name)
            say(f"!!! kernel {name} is OFF from here on: what follows uses torch in its place")


def check_draw(device: torch.device) -> bool:
    from tsdfm.kernels.draw import one_pass, reference

    good = True
    for columns, dtype, size in ((5, torch.float32, 3.0), (1000, torch.bfloat16, 3.0), (50257, torch.bfloat16, 3.0),
                                 (50257, torch.float32, 8.0)):  # fmt: skip
        n, k = 512, 6
        made = torch.Generator(device).manual_seed(columns)
        logits = (size * torch.randn(n, columns, generator=made, device=device)).to(dtype)
        z = torch.randint(0, columns + 1, (n,), generator=made, device=device)
        beta = 0.6 + torch.rand(n, k, generator=made, device=device)
        beta[: n // 2] = navigation(n // 2, k, device)
        u = torch.rand(n, k + 1, generator=made, device=device, dtype=torch.float64)
        args = (z, beta, u[:, :k].contiguous(), u[:, k].contiguous())
        mine = one_pass(logits, *args, stats=True)
        theirs = reference(logits.double(), args[0], beta.double(), *args[2:], stats=True)
        assert mine.entropy is not None
        assert theirs.entropy is not None
        assert mine.fresh is not None
        assert theirs.fresh is not None
        assert mine.top is not None
        assert theirs.top is not None
        same = (mine.tokens == theirs.tokens).double().mean().item()
        fresh = (mine.fresh == theirs.fresh).double().mean().item()
        far = (mine.tokens - theirs.tokens).abs().max().item()
        p = ((mine.p_other - theirs.p_other).abs() / theirs.p_other.clamp(min=1e-300)).max().item()
        h = (mine.entropy - theirs.entropy).abs().max().item()
        fine = same > 0.97 and fresh > 0.97 and p < 1e-4 and h < 1e-3 and bool((mine.top == theirs.top).all())
        again = one_pass(logits[7:9], *(x[7:9] for x in args), stats=True)
        alone = all(
            a is not None and b is not None and torch.equal(a[7:9], b) for a, b in zip(mine, again, strict=True)
        )
        say(
            f"  draw |V|={columns} {dtype}: same tokens {same:.4f} (plain {fresh:.4f}, farthest {far}), 1−p(z) to "
            f"{p:.1e}, entropy to {h:.1e}, batch-invariant {alone}: {'ok' if fine and alone else 'WRONG'}"
        )
        good &= fine and alone
    return good and chi_square(device)


def navigation(n: int, k: int, device: torch.device) -> Tensor:
    """1/T [n, k] of k candidates by Navigate's defaults, the base temperatures spread over their range."""
    base = torch.linspace(0.8, 1.2, n, device=device, dtype=torch.float64)
    return (1.0 / (base[:, None] * torch.linspace(0.7, 1.3, k, device=device, dtype=torch.float64))).float()


def chi_square(device: torch.device) -> bool:
    """The law of a million draws of one row of 50 257 bf16 logits, in 500 bins of about equal mass: the first of four
    draws of near temperatures."""
    from tsdfm.kernels.draw import one_pass

    columns, n = 50257, 1 << 18
    made = torch.Generator(device).manual_seed(1)
    row = torch.randn(1, columns, generator=made, device=device).bfloat16()
    if not kernels.on(row, "draw"):
        return True  # the reference would copy the row n times
    p = row.double().softmax(-1)[0]
    bins = (p.cumsum(0) * 500).long().clamp(max=499)
    counts = torch.zeros(500, dtype=torch.float64, device=device)
    at = torch.zeros(n, dtype=torch.int64, device=device)
    for _ in range(4):
        u = torch.rand(n, 4, generator=made, device=device, dtype=torch.float64)
        found = one_pass(row, at + columns, torch.tensor([1.0, 0.8, 1.25, 1.1], device=device).expand(n, 4), u, at=at)
        counts += torch.bincount(bins[found.tokens[:, 0]], minlength=500)
    expected = 4 * n * torch.zeros_like(counts).index_add_(0, bins, p)
    chi = ((counts - expected) ** 2 / expected).sum().item()
    say(f"  draw chi-square over 500 bins: {chi:.0f}, expected 499 ± 32")
    return abs(chi - 499) < 6 * 32


def check_rows(device: torch.device) -> bool:
    from tsdfm.kernels import rows

    good, columns, n = True, 50257, 64
    made = torch.Generator(device).manual_seed(2)
    wide = columns + -columns % 64
    logits, target = (2 * torch.randn(n, wide, generator=made, device=device) for _ in range(2))
    x_1, x_t = torch.randint(0, columns, (2, n), generator=made, device=device)
    x_t[:20] = x_1[:20]
    scale = torch.rand(n, generator=made, device=device)
    for dtype in (torch.float32, torch.bfloat16):
        a, b = logits.to(dtype), target.to(dtype)
        cases: dict[str, Callable[[Tensor], Tensor]] = {
            "forward": partial(_divergence, b, scale, columns, False),
            "reverse": partial(_divergence, b, scale, columns, True),
            "cross-entropy": lambda x: rows.tokens(x, x_1, None, scale, columns),
            "gkl": lambda x: rows.tokens(x, x_1, x_t, scale, columns),
        }
        for name, case in cases.items():
            mine, exact = a.clone(), a.double()
            loss, truth = case(mine), case(exact)  # float64 always takes the reference
            value = ((loss - truth).abs() / truth.abs().clamp(min=1e-3)).max().item()
            gap = ((mine.double() - exact).norm() / exact.norm()).item()
            fine = value < 1e-4 and gap < (1e-5 if dtype == torch.float32 else 4e-3)
            say(f"  rows {name} {dtype}: loss to {value:.1e}, gradient to {gap:.1e}: {'ok' if fine else 'WRONG'}")
            good &= fine
    return good


def _divergence(target: Tensor, scale: Tensor, columns: int, reverse: bool, logits: Tensor) -> Tensor:
    from tsdfm.kernels import rows

    return rows.divergence(logits, target.to(logits.dtype), scale, columns, reverse=reverse)


def check_noise(device: torch.device) -> bool:
    from tsdfm.flow import RowNoise

    plain, mine = (RowNoise(3, torch.arange(5, device=device), 1 << 20) for _ in range(2))
    same = True
    for shape in ((5, 1000, 2), (5,), (5, 3, 100)):
        with kernels.without("noise"):
            expected = plain.uniform(shape)
        same &= torch.equal(expected, mine.uniform(shape))
    say(f"  noise: the same bits: {same}")
    return same


# ── how quick are they? ─────────────────────────────────────────────────────────────────────────────────────────────


def draws(settings: KernelBenchmark, device: torch.device, sheet: Sheet) -> None:
    from tsdfm.kernels.draw import one_pass, reference

    n, columns, k = settings.rows, settings.vocab, 6
    wide = torch.randn(n, columns + -columns % 64, device=device, dtype=torch.bfloat16)
    logits, odd = wide[:, :columns], wide[:, :columns].contiguous()
    z = torch.randint(0, columns, (n,), device=device)
    beta, u = navigation(n, k, device), torch.rand(n, 8, device=device, dtype=torch.float64)
    apart = 0.6 + torch.rand(n, k, device=device)
    fresh, some = u[:, 0].contiguous(), torch.rand(n, device=device) < 0.05
    none = torch.empty(n, 0, device=device)
    uniforms = {count: u[:, :count].contiguous() for count in (1, 2, 3, 5, 6, 8)}
    cases: dict[str, Callable[[], Any]] = {
        "read once (amax of bf16)": lambda: wide.amax(-1),
        "softmax and multinomial, 1 draw": lambda: torch.multinomial(odd.float().softmax(-1), 1),
        "reference, 1 draw": lambda: reference(logits, z, beta[:, :1], uniforms[1]),
        "kernel, 1 draw": lambda: one_pass(logits, z, beta[:, :1].contiguous(), uniforms[1]),
        "kernel, 6 draws": lambda: one_pass(logits, z, beta, uniforms[6]),
        "kernel, 6 draws, temperatures far apart": lambda: one_pass(logits, z, apart, uniforms[6]),
        "kernel, 6 draws, odd rows": lambda: one_pass(odd, z, beta, uniforms[6]),
        "kernel, 5 draws, statistics, plain draw": lambda: one_pass(
            logits, z, beta[:, :5].contiguous(), uniforms[5], fresh, stats=True
        ),
        "kernel, statistics and plain draw": lambda: one_pass(logits, z, none, none, fresh, stats=True),
        "kernel, 6 draws on 5% of the rows": lambda: one_pass(logits, z, beta, uniforms[6], need=some),
    }
    for count in (2, 3, 5, 8):
        b = navigation(n, count, device)
        cases[f"kernel, {count} draws"] = partial(one_pass, logits, z, b, uniforms[count])
    for name, plan in draw_plans().items() if kernels.on(logits, "draw") else ():
        cases[f"6 draws, {name}"] = planned(plan, lambda: one_pass(logits, z, beta, uniforms[6]))
    floor = 2 * n * columns / BANDWIDTH * 1e3 if device.type == "cuda" else None
    for name, case in cases.items():
        sheet.add(name, case, floor=floor)


def draw_plans() -> dict[str, dict[str, Any]]:
    """Ways to make the block sums, by name."""
    plans: dict[str, dict[str, Any]] = {}
    for columns, blocks, warps, by_hand in ((256, 8, 4, 0), (256, 4, 4, 1), (512, 1, 1, 0), (1024, 1, 1, 0)):
        name = f"columns {columns} blocks {blocks} warps {warps} by hand {by_hand}"
        plans[name] = {"COLUMNS": columns, "BLOCKS": blocks, "WARPS": warps, "POLYNOMIAL": by_hand}
    return plans


def planned(plan: dict[str, Any], work: Callable[[], Any]) -> Callable[[], Any]:
    """`work` with other constants of the draw's kernels."""
    from tsdfm.kernels import draw_triton as module

    def run() -> Any:
        kept = {name: getattr(module, name) for name in plan}
        vars(module).update(plan)
        try:
            return work()
        finally:
            vars(module).update(kept)

    return run


def losses(settings: KernelBenchmark, device: torch.device, sheet: Sheet) -> None:
    from tsdfm.kernels import fused
    from tsdfm.kernels import rows as losses_of
    from tsdfm.kernels import rows_triton as module
    from tsdfm.kernels.fused import Divergence, GeneralisedKL, Target, fused_loss

    n, columns, width = settings.positions, settings.vocab, settings.width
    part = 2048
    wide = columns + -columns % 64
    logits, target = (torch.randn(part, wide, device=device, dtype=torch.bfloat16) for _ in range(2))
    x_1, x_t = torch.randint(0, columns, (2, part), device=device)
    scale = torch.ones(part, device=device)
    three = 3 * 2 * part * wide / BANDWIDTH * 1e3
    kept = module.DIVERGENCE, module.TOKENS
    for plan in ((2048, 8), (4096, 16), (1024, 4), (2048, 4)):
        module.DIVERGENCE = module.TOKENS = plan
        title = f"2048 rows, columns {plan[0]} warps {plan[1]}"
        sheet.add(f"KL, {title}", lambda: losses_of.divergence(logits, target, scale, columns), 9, floor=three)
        sheet.add(f"GKL, {title}", lambda: losses_of.tokens(logits, x_1, x_t, scale, columns), 9, floor=three * 2 / 3)
    module.DIVERGENCE, module.TOKENS = kept
    if not sheet.fits("whole losses", 15.0):
        return
    head = nn.Linear(width, columns, device=device)
    hidden = torch.randn(n, width, device=device, requires_grad=True)
    theirs = torch.randn(n, width, device=device)
    even = torch.full((n,), 1.0 / n, dtype=torch.float64, device=device)
    small = padded(head.weight, head.bias, torch.bfloat16)
    goal = Target([theirs], (1.0,), small.weight[:columns], None, small)
    x_1, x_t = torch.randint(0, columns, (2, n), device=device)
    objectives = {"KL": Divergence(goal), "GKL": GeneralisedKL(x_1, x_t)}

    def whole(objective: Any) -> None:
        with torch.autocast(device.type, torch.bfloat16):
            fused_loss(hidden, head, objective, even).backward()  # type: ignore[no-untyped-call]

    products = {"KL": 4, "GKL": 3}
    room = fused.FAST_ROOM
    for name, objective in objectives.items():
        floor = products[name] * 2 * n * width * columns / 7.9e14 * 1e3
        for size, sums in ((4096, False), (2048, True), (4096, True), (8192, True)):
            fused.FAST_ROOM, fused.WIDE_SUMS = size * len(small.weight), sums
            title = f"head and {name}, {n} positions, chunks of {size}" + (", wide sums" if sums else "")
            sheet.add(title, partial(whole, objective), 9, floor=floor)
        fused.FAST_ROOM, fused.WIDE_SUMS = room, True
        with kernels.without():
            sheet.add(f"head and {name}, {n} positions, no kernels", partial(whole, objective), 9, floor=floor)


def heads(settings: KernelBenchmark, device: torch.device, sheet: Sheet) -> None:
    """What padding does to the head's three products, and the device's rate on a friendly one."""
    n, width = 4096, settings.width
    for columns in (settings.vocab, settings.vocab + -settings.vocab % 64):
        weight = torch.randn(columns, width, device=device, dtype=torch.bfloat16)
        x = torch.randn(n, width, device=device, dtype=torch.bfloat16)
        grad = torch.randn(n, columns, device=device, dtype=torch.bfloat16)
        cases: dict[str, Callable[[], Any]] = {
            "logits": partial(F.linear, x, weight),
            "gradient of hidden": partial(torch.mm, grad, weight),
            "gradient of weight": partial(torch.mm, grad.T, x),
        }
        for name, case in cases.items():
            sheet.add(f"{name}, {columns} columns", case, flops=2 * n * width * columns)
    side = 8192 if device.type == "cuda" else 512
    square = torch.randn(side, side, device=device, dtype=torch.bfloat16)
    sheet.add(f"{side} cubed", lambda: square @ square, flops=2 * side**3)


def attention(settings: KernelBenchmark, device: torch.device, sheet: Sheet) -> None:
    """Backends of attention at the shapes of student, semi-teacher and compass."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    for batch, backward in ((8, True), (4, False), (15, False)):
        heads_, length = settings.width // 64, 1024
        packed = torch.randn(batch, length, 3, heads_, 64, device=device, dtype=torch.bfloat16, requires_grad=backward)
        q, k, v = packed.permute(2, 0, 3, 1, 4)
        flops = 4 * batch * length * length * settings.width * (3.5 if backward else 1.0)
        for backend in (None, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):

            def work(backend: Any = backend, q: Any = q, k: Any = k, v: Any = v, backward: bool = backward) -> None:
                if backend is None:
                    made = F.scaled_dot_product_attention(q, k, v)
                else:
                    with sdpa_kernel(backend):
                        made = F.scaled_dot_product_attention(q, k, v)
                if backward:
                    made.backward(made.detach(), retain_graph=True)  # type: ignore[no-untyped-call]

            name = f"{backend.name if backend else 'default'}, {batch} rows{', and backward' if backward else ''}"
            sheet.add(name, work, flops=flops)
