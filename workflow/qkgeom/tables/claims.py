"""The claims of the paper's abstract against the runs of this preset."""

from __future__ import annotations

import pandas as pd

from qkgeom.rendering import Inputs
from qkgeom.tables._claims import CLAIMS, evidence
from qkgeom.tables._evidence import summary
from qkgeom.tables._predictions import titles
from qkgeom.untrained import MARK

PAPER = "claims of the abstract"
CAPTION = (
    "What the paper's abstract claims, in pairs of runs of this preset. Effects are positive in favour of the claim. "
    "Encoders are more symmetric: symmetry of an encoder minus that of the decoder of the same corpus, depth and seed, "
    "medians over layers at the last step. Decoders' columns dominate: directionality (excess) of that encoder minus that "
    "of the decoder; for the claim, the decoder's must be negative too. Symmetry emerges, column dominance emerges: by how "
    "much the symmetry of an encoder rises, and the directionality (excess) of a decoder falls, from step 0 to the last, "
    "where it must be negative. Symmetric start is faster: speed-up as in symmetric_init, as a fraction (loss smoothed over "
    "5 logged points; 0 where it was not reached); for the claim, it must be positive and the final training loss lower; "
    "against it is a higher one, or a symmetric start that alone diverged; losses whose difference lies within its 95 % "
    "interval (as in symmetric_init) speak neither way. p: two-sided sign test, where at least 6 pairs speak for or "
    "against. Supported here: all pairs are for the claim or, where tested, most are and p is below 0.05; not supported "
    "here: fewer than half are for it; mixed: all else. † and numbers: in so many of these pairs the last scores of a run "
    "cannot be told from those of random weights, so that the verdict may rest on chance. Every pair is in the csv. How far "
    "each model has learned is in training_runs: where it does not beat the trivial baseline, little speaks for or against. "
    "The claims after these five are the theory's predictions of weight updates, written down before any was drawn. A run's "
    "value is the mean over the measured steps of the median over layers. Effects are again positive in favour: an "
    "encoder's value minus that of its decoder (where decoders grow columns, directionality (excess), and the decoder's must "
    "be negative too); logit gradients of encoders: pair symmetry minus that with shuffled positions; rows and columns that "
    "grow: a rank correlation over tokens, run by run; anisotropic inputs: directionality (excess) of a decoder's update "
    "from whitened inputs minus that from its own. Each is defined in docs/theory.md; those that need the controls are in "
    "preset theory."
)
GROUP = "training, controls"
NEEDS = ("summary", "scores", "losses", "runs")
USES = ("updates",)


def table(inputs: Inputs) -> pd.DataFrame:
    """One row per claim and pair of runs: both values, the effect, and whether it speaks for the claim."""
    return evidence(inputs)


def printed(table: pd.DataFrame) -> pd.DataFrame:
    """One row per claim, and per prediction that these runs speak of: number of pairs, effects, test, verdict."""
    spoken_of = {claim: title for claim, title in titles().items() if (table["claim"] == claim).any()}
    rows = [_row(title, summary(table[table["claim"] == claim])) for claim, title in (CLAIMS | spoken_of).items()]
    return pd.DataFrame({column: [row[column] for row in rows] for column in rows[0]})


def _row(title: str, found: dict) -> dict[tuple[str, str], object]:
    test = f"{found['p']:.2g}" if found["p"] is not None else "too few pairs" if found["pairs"] else None
    counts = {
        ("Pairs", "All"): str(found["pairs"]),
        ("Pairs", "For"): str(found["in favour"]),
        ("Pairs", "Against"): str(found["against"]),
    }
    effects = {("Effect", name.capitalize()): found[name] for name in ("median", "min", "max")}
    verdict = f"{found['verdict']} {MARK} {found['untrained']} of {found['pairs']}" if found["untrained"] else found["verdict"]
    return {("", "Claim"): title, **counts, **effects, ("", "p"): test, ("", "Verdict"): verdict}
