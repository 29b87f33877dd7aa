"""pass@k: the chance that at least one of k attempts is right, without bias."""

from __future__ import annotations

from collections.abc import Sequence

from tsdfm.errors import UserError


def pass_at_k(attempts: int, right: int, k: int) -> float:
    """1 − C(n − c, k)/C(n, k) for n attempts of which c are right, as Π over i: 1 − Π_{i=n−c+1}^{n} (1 − k/i).

    The product has no large number in it, so it is exact to rounding for any n.
    """
    if not 0 <= right <= attempts or not 1 <= k <= attempts:
        raise UserError(f"pass@{k} needs at least {k} attempts, {right} of {attempts} right is not possible for it")
    if attempts - right < k:
        return 1.0
    none = 1.0
    for i in range(attempts - right + 1, attempts + 1):
        none *= 1.0 - k / i
    return 1.0 - none


def passes_at_k(right: Sequence[int], attempts: int, k: int) -> list[float]:
    """pass@k of each problem, from how many of its attempts were right; their mean is the benchmark's."""
    return [pass_at_k(attempts, count, k) for count in right]
