"""What pairs of runs say of a claim: how many speak for it, a sign test where there are enough, and a verdict."""

from __future__ import annotations

from math import comb

import numpy as np
import pandas as pd

ENOUGH = 6  # pairs that speak for or against: with fewer, no outcome of the test is below 0.05; captions state it
LEVEL = 0.05
FOR, AGAINST, NEITHER = "for", "against", "neither"
SUPPORTED, UNSUPPORTED, MIXED, NONE = "supported here", "not supported here", "mixed", "no such run"


def speaks(effect: pd.Series, also: pd.Series | bool = True) -> pd.array:
    """What each pair says: for the claim with a positive effect, against it, or neither; empty for a pair without an effect.

    Args:
        effect: of each pair, positive in favour.
        also: what must hold of a pair besides, to be for the claim.
    """
    cases = [effect.isna(), effect == 0, (effect > 0) & also]
    return pd.array(np.select(cases, [None, NEITHER, FOR], AGAINST), dtype="str")


def sign_test(n_for: int, n_against: int) -> float:
    """Two-sided p of a sign test: of a split at least as uneven as this if both ways were as likely."""
    n = n_for + n_against
    tail = sum(comb(n, k) for k in range(min(n_for, n_against) + 1)) / 2**n
    return min(1.0, 2 * tail)


def verdict(n_for: int, n_pairs: int, p: float | None) -> str:
    """The verdict on a claim, by the rule that the caption of `claims` states.

    Args:
        n_for: pairs that speak for it.
        n_pairs: all pairs.
        p: of the sign test, or None where there are too few pairs for one.
    """
    if not n_pairs:
        return NONE
    if 2 * n_for < n_pairs:
        return UNSUPPORTED
    convincing = n_for == n_pairs if p is None else p < LEVEL and 2 * n_for > n_pairs
    return SUPPORTED if convincing else MIXED


def summary(pairs: pd.DataFrame) -> dict[str, object]:
    """Counts, effects, test and verdict of one claim.

    Args:
        pairs: columns `effect`, `speaks` and `untrained`; a pair that could not be compared has no `speaks` and is left out.
    """
    counted = pairs[pairs["speaks"].notna()]
    n_for, n_against = (int((counted["speaks"] == way).sum()) for way in (FOR, AGAINST))
    p = sign_test(n_for, n_against) if n_for + n_against >= ENOUGH else None
    effects = counted["effect"].dropna().astype(float)
    return {
        "pairs": len(counted),
        "in favour": n_for,
        "against": n_against,
        "untrained": int(counted["untrained"].sum()),
        "median": effects.median(),
        "min": effects.min(),
        "max": effects.max(),
        "p": p,
        "verdict": verdict(n_for, len(counted), p),
    }
