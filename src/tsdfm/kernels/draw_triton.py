# mypy: ignore-errors
"""The kernels of `kernels.draw`. Two launches: block sums of every row, then the choice.

The sums have a program for every few blocks of a row, each block in one warp, so that no sum is made across warps. The
choice reads the sums, and of the row only the K chosen blocks. Everything excludes z, which the choice adds back where
it belongs: so a z that holds nearly all the mass takes no precision from the others.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tsdfm.kernels.draw import Drawn

LINE = 256  # columns that one warp loads at once in bf16
COLUMNS = 256  # of a block: whole lines, all of them in one warp, so that a block's sum needs no other warp
BLOCKS = 8  # of a program
WARPS = 4
POLYNOMIAL = 0  # how many of the K exponentials are worked out by multiply-adds instead of the special-function unit
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def _exp2_by_hand(x):
    """2^x by a polynomial of degree 5 on [−½, ½] and the exponent's bits; 2^−126 for anything below that."""
    x = tl.maximum(x, -126.0)
    shifted = x + 12582912.0  # 1.5·2²³: the nearest whole number now sits in the low bits
    f = x - (shifted - 12582912.0)
    p = f * 0.0013333558 + 0.0096181291
    p = p * f + 0.0555041087
    p = p * f + 0.2402265070
    p = p * f + 0.6931471806
    p = p * f + 1.0
    bits = shifted.to(tl.int32, bitcast=True) << 23
    return (p.to(tl.int32, bitcast=True) + bits).to(tl.float32, bitcast=True)


@triton.jit
def _sum(x):
    """[H, W, C/H] → [W]: the H lines of a block lie in the same lanes, so first those, without talking to others."""
    return tl.sum(tl.sum(x, axis=0), axis=1)


@triton.jit
def sums_kernel(
    logits, stride, at, z, need, beta, peak, first, sums, one, mixed, V, READ, NB,
    K: tl.constexpr, H: tl.constexpr, C: tl.constexpr, W: tl.constexpr, POLY: tl.constexpr,
    AT: tl.constexpr, NEED: tl.constexpr, ONE: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    """Per row and block, over columns but z: the largest logit m and its first column, Σ e^{β_k (l − m)} for each k,
    and Σ e^{l − m}, Σ e^{l − m}(l − m). A program has W blocks of C columns each, in H lines."""
    n = tl.program_id(0).to(tl.int64)
    wanted = 1
    if NEED:
        wanted = tl.load(need + n).to(tl.int32)
    if wanted != 0:
        row = n
        if AT:
            row = tl.load(at + n)
        start = tl.program_id(1) * (W * C)
        block = tl.program_id(1) * W + tl.arange(0, W)
        inside = tl.arange(0, H)[:, None, None] * (C // H) + tl.arange(0, C // H)[None, None, :]
        column = block[None, :, None] * C + inside
        z_n = tl.load(z + n)
        line = logits + row * stride
        if (start + W * C <= V) & ((z_n < start) | (z_n >= start + W * C)):
            l = tl.load(line + column).to(tl.float32)  # nothing to leave out: most programs
        else:
            # read up to an aligned end, then leave out what is no column: a mask that ends anywhere would split loads
            l = tl.load(line + column, mask=column < READ, other=0.0).to(tl.float32)
            l = tl.where((column < V) & (column != z_n), l, float("-inf"))
        m = tl.max(tl.max(l, axis=0), axis=1)
        below = l - tl.where(m == float("-inf"), 0.0, m)[None, :, None]
        real = block < NB
        tl.store(peak + n * NB + block, m, mask=real)
        for k in tl.static_range(K):
            rate = tl.load(beta + n * K + k) * LOG2E
            if k < POLY:  # noqa: SIM108 (a choice at compile time)
                e = _exp2_by_hand(below * rate)
            else:
                e = tl.exp2(below * rate)
            tl.store(sums + (n * K + k) * NB + block, _sum(e), mask=real)
        if ONE:
            e = tl.exp2(below * LOG2E)
            tl.store(one + n * NB + block, _sum(e), mask=real)
            if STATS:
                drop = tl.where(l == float("-inf"), 0.0, e * below)
                tl.store(mixed + n * NB + block, _sum(drop), mask=real)
                where = tl.where(l == m[None, :, None], column, 2147483647)
                where = tl.min(tl.min(where, axis=0), axis=1)
                tl.store(first + n * NB + block, where, mask=real)


@triton.jit
def _choose(line, skip, weights, total, u, rate, V, READ, NBP: tl.constexpr, C: tl.constexpr):
    """The token that u points at: the block by its float64 `weights` [NBP], the column by float64 sums inside it."""
    b = tl.arange(0, NBP)
    running = tl.cumsum(weights, 0)
    target = u * total
    last = tl.max(tl.where(weights > 0, b, 0), axis=0)
    block = tl.minimum(tl.sum((running <= target).to(tl.int32), axis=0), last)
    own = tl.sum(tl.where(b == block, weights, 0.0), axis=0)
    start = tl.sum(tl.where(b == block, running - weights, 0.0), axis=0)
    share = tl.minimum(tl.maximum((target - start) / tl.where(own > 0, own, 1.0), 0.0), 1.0)
    i = tl.arange(0, C)
    column = block * C + i
    l = tl.load(line + column, mask=column < READ, other=0.0).to(tl.float32)
    l = tl.where((column < V) & (column != skip), l, float("-inf"))
    m = tl.max(l, axis=0)
    m = tl.where(m == float("-inf"), 0.0, m)
    e = tl.exp2((l - m) * (rate * LOG2E)).to(tl.float64)
    along = tl.cumsum(e, 0)
    whole = tl.sum(e, axis=0)
    end = tl.max(tl.where(e > 0, i, 0), axis=0)
    return block * C + tl.minimum(tl.sum((along <= share * whole).to(tl.int32), axis=0), end)


@triton.jit
def choice_kernel(
    logits, stride, at, z, need, beta, u, u_fresh, peak, first, sums, one, mixed,
    tokens, p_z, p_other, lse, entropy, confidence, top, fresh, V, READ, NB,
    K: tl.constexpr, C: tl.constexpr, NBP: tl.constexpr, AT: tl.constexpr, NEED: tl.constexpr,
    FRESH: tl.constexpr, STATS: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64)
    z_n = tl.load(z + n)
    wanted = 1
    if NEED:
        wanted = tl.load(need + n).to(tl.int32)
    if wanted != 0:
        row = n
        if AT:
            row = tl.load(at + n)
        line = logits + row * stride
        b = tl.arange(0, NBP)
        m = tl.load(peak + n * NB + b, mask=b < NB, other=float("-inf"))
        high = tl.max(m, axis=0)
        finite = tl.where(high == float("-inf"), 0.0, high)  # nothing but z (or nothing at all) has any weight
        below = (m - finite).to(tl.float64)
        has_z = z_n < V
        l_z = tl.load(line + z_n, mask=has_z, other=float("-inf")).to(tl.float32)
        empty = (high == float("-inf")) & (l_z == float("-inf"))
        rest = (V - has_z.to(tl.int32)).to(tl.float64)
        for k in tl.static_range(K):
            rate = tl.load(beta + n * K + k)
            s = tl.load(sums + (n * K + k) * NB + b, mask=b < NB, other=0.0).to(tl.float64)
            weights = s * tl.exp(below * rate.to(tl.float64))
            total = tl.sum(weights, axis=0)
            u_k = tl.load(u + n * K + k)
            token = _choose(line, z_n, weights, total, u_k, rate, V, READ, NBP, C).to(tl.int64)
            alike = (u_k * rest).to(tl.int64)
            alike = alike + (alike >= z_n).to(tl.int64)
            gap = (l_z.to(tl.float64) - finite) * rate.to(tl.float64) - tl.log(tl.where(total > 0, total, 1.0))
            gap = tl.where(total > 0, gap, float("inf"))
            gap = tl.where(empty & (rest > 0), -tl.log(tl.where(rest > 0, rest, 1.0)), gap)
            stay = tl.where(has_z, 1.0 / (1.0 + tl.exp(-gap)), 0.0)
            leave = tl.where(has_z, 1.0 / (1.0 + tl.exp(gap)), 1.0)
            token = tl.where(empty, alike, token)
            tl.store(tokens + n * K + k, tl.where(leave > 0, token, z_n))
            tl.store(p_z + n * K + k, stay)
            tl.store(p_other + n * K + k, leave)
        if FRESH or STATS:
            peak_all = tl.maximum(high, l_z)
            base = tl.where(peak_all == float("-inf"), 0.0, peak_all)
            s = tl.load(one + n * NB + b, mask=b < NB, other=0.0).to(tl.float64)
            scaled = tl.exp((m - base).to(tl.float64))
            w_z = tl.exp((l_z - base).to(tl.float64))
            weights = s * scaled + tl.where(b == z_n // C, tl.where(has_z, w_z, 0.0), 0.0)
            total = tl.sum(weights, axis=0)
            if FRESH:
                u_f = tl.load(u_fresh + n)
                token = _choose(line, V, weights, total, u_f, 1.0, V, READ, NBP, C).to(tl.int64)
                any_one = (u_f * V).to(tl.int64)
                tl.store(fresh + n, tl.where(empty, any_one, token))
            if STATS:
                low = tl.load(mixed + n * NB + b, mask=b < NB, other=0.0).to(tl.float64)
                # Σ w (l − base) of a block: its own sum about its peak, moved to the row's
                shift = tl.where(s > 0, (m - base).to(tl.float64), 0.0)
                inner = tl.sum((low + s * shift) * scaled, axis=0)
                inner += tl.where(has_z & (w_z > 0), w_z * (l_z - base).to(tl.float64), 0.0)
                safe = tl.where(empty, total * 0.0 + V, total)
                tl.store(lse + n, base.to(tl.float64) + tl.log(safe) + tl.where(empty, float("-inf"), 0.0))
                tl.store(entropy + n, tl.log(safe) - tl.where(empty, 0.0, inner / safe))
                tl.store(confidence + n, 1.0 / safe)
                where = tl.load(first + n * NB + b, mask=b < NB, other=2147483647)
                best = tl.min(tl.where(m == high, where, 2147483647), axis=0).to(tl.int64)
                best = tl.where(has_z & ((l_z > high) | ((l_z == high) & (z_n < best))), z_n, best)
                tl.store(top + n, tl.where(empty, 0, best))
    else:
        for k in tl.static_range(K):
            tl.store(tokens + n * K + k, z_n)
            tl.store(p_z + n * K + k, (n * 0 + 1).to(tl.float64))
            tl.store(p_other + n * K + k, (n * 0).to(tl.float64))
        if FRESH:
            tl.store(fresh + n, z_n)
        if STATS:
            zero = (n * 0).to(tl.float64)
            tl.store(lse + n, zero)
            tl.store(entropy + n, zero)
            tl.store(confidence + n, zero)
            tl.store(top + n, n * 0)


def _aligned_end(logits: Tensor) -> int:
    """Up to where a row may be read: V, or the next multiple of 16 where rows are that far apart in memory."""
    rows, columns = logits.shape
    end = columns + -columns % 16
    last = logits.storage_offset() + max(rows - 1, 0) * logits.stride(0) + end
    room = logits.untyped_storage().nbytes() // logits.element_size()
    return end if logits.stride(0) >= end and last <= room else columns


def launch(
    logits: Tensor,
    z: Tensor,
    beta: Tensor,
    u: Tensor,
    u_fresh: Tensor | None,
    at: Tensor | None,
    need: Tensor | None,
    stats: bool,
) -> Drawn:
    n, k = u.shape
    columns, device = logits.shape[1], logits.device
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    block = min(COLUMNS, triton.next_power_of_2(columns))
    count = triton.cdiv(columns, block)
    read = _aligned_end(logits)
    one = stats or u_fresh is not None

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    none = empty(1)  # stands for what is not asked for: kernels never touch it
    z, u, beta = z.contiguous(), u.to(torch.float64).contiguous(), beta.to(torch.float32).contiguous()
    rows = none if at is None else at.contiguous()
    wanted = none if need is None else need.contiguous()
    uniforms = none if u_fresh is None else u_fresh.to(torch.float64).contiguous()
    peak, sums = empty(n, count), empty(n, k, count) if k else none
    ones, mixed = (empty(n, count) if one else none), (empty(n, count) if stats else none)
    first = empty(n, count, dtype=torch.int32) if stats else none
    tokens = empty(n, k, dtype=torch.int64)
    p_z, p_other = (empty(n, k, dtype=torch.float64) for _ in range(2))
    lse, entropy, confidence = (empty(n, dtype=torch.float64) if stats else none for _ in range(3))
    top = empty(n, dtype=torch.int64) if stats else none
    fresh = empty(n, dtype=torch.int64) if u_fresh is not None else none
    flags = {"AT": at is not None, "NEED": need is not None}
    if n:
        sums_kernel[(n, triton.cdiv(count, BLOCKS))](
            logits, logits.stride(0), rows, z, wanted, beta, peak, first, sums, ones, mixed, columns, read, count,
            K=k, H=max(1, block // LINE), C=block, W=BLOCKS, POLY=POLYNOMIAL, ONE=one, STATS=stats,
            num_warps=WARPS, **flags,
        )  # fmt: skip
        choice_kernel[(n,)](
            logits, logits.stride(0), rows, z, wanted, beta, u, uniforms, peak, first, sums, ones, mixed,
            tokens, p_z, p_other, lse, entropy, confidence, top, fresh, columns, read, count,
            K=k, C=block, NBP=triton.next_power_of_2(count), FRESH=u_fresh is not None, STATS=stats,
            num_warps=1, **flags,
        )  # fmt: skip
    found = (lse, entropy, confidence, top) if stats else (None,) * 4
    return Drawn(tokens, p_z, p_other, *found, fresh if u_fresh is not None else None)
