"""Options of inference: one object that checks itself, and what its fields may be.

Neither numpy nor scipy is imported here: the command line has options from this module, and its help should not wait.
"""

from dataclasses import dataclass, fields
from typing import Any

from posstats.arguments import choice, fraction, whole_number
from posstats.vocabulary import Note

#: How intervals can be made: what `method` may be.
CHOICES = {
    "t": "t quantiles and moments: no replicates",
    "bootstrap": "a document bootstrap of the same pivots",
}
#: What a result may say its intervals are -> in words.
INTERVAL_METHODS = {
    "moments": "means of squares by matched moments, never below 0",
    "fieller": "Fieller sets, t quantiles of the joint jackknife",
    "bootstrap_t": "Fieller sets, critical values of a document bootstrap (bootstrap-t)",
    "corrected_jackknife": "t limits (means of squares: score limits), jackknife error without its second-order bias",
    "studentized": "bootstrap-t: replicates divided by their own jackknife standard error",
    "jackknife": "estimate +- t(G-1) times the jackknife standard error",
}
#: Of the above, how the mean of a resampled number gets its interval.
RESAMPLING = ("jackknife", "corrected_jackknife", "studentized")
#: Ways to adjust: Benjamini-Hochberg, Benjamini-Yekutieli, Holm.
METHODS = ("bh", "by", "holm")


#: Replicates below which the tails of a pivot are too thin for a quantile.
FEWEST_RESAMPLES = 99
#: Most resamples and sign flips: more would not fit into memory, and no result needs them.
MOST_DRAWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Inference:
    """How estimates are resampled and tested. The resampling unit is the document.

    Attributes
    ----------
    level : float
        Confidence level of intervals, between 0 and 1.
    method : {"t", "bootstrap"}, optional
        Quantiles of intervals: Student's t and matched moments, or those of a document bootstrap of the same pivots. If
        not given, the bootstrap for rows pooled over heads and layers, t for all others (docs/calibration.md).
    n_resamples : int
        Bootstrap replicates, 99 to 1,000,000.
    n_permutations : int
        Sign flips (permutations) of a test, 1 to 1,000,000.
    adjust : {"bh", "by", "holm"}
        Adjustment of p-values over a family: Benjamini-Hochberg, Benjamini-Yekutieli or Holm.
    seed : int
        Seed of replicates, sign flips and folds, 0 to 2**64 - 1; one seed gives one result.
    """

    level: float = 0.95
    method: str | None = None
    n_resamples: int = 2000
    n_permutations: int = 9999
    adjust: str = "bh"
    seed: int = 0

    def __post_init__(self) -> None:
        checked: dict[str, object] = {
            "level": fraction("level", self.level),
            "method": None if self.method is None else choice("method", self.method, CHOICES),
            "adjust": choice("adjust", self.adjust, METHODS),
            "seed": whole_number("seed", self.seed, 0, 2**64 - 1),
        }
        checked |= {
            name: whole_number(name, getattr(self, name), least, MOST_DRAWS)
            for name, least in (("n_resamples", FEWEST_RESAMPLES), ("n_permutations", 1))
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def interval(self) -> str:
        """How the mean of a number per document gets its interval (:data:`RESAMPLING`)."""
        return "studentized" if self.method == "bootstrap" else "jackknife"

    @property
    def corrected(self) -> str:
        """The same of a number per pair of documents."""
        return "studentized" if self.method == "bootstrap" else "corrected_jackknife"

    def options(self, *without: str) -> dict[str, Any]:
        """Return keyword arguments of estimators; some have no use for all of them."""
        options = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in without}
        return {name: value for name, value in options.items() if value is not None}

    def settings(self, interval: str | None = None, *, pooled: bool = False) -> dict[str, object]:
        """Return what a result says about its intervals.

        `interval` is "moments" or "fieller" where they are made of pair products; `pooled` whether the rows are those
        of all heads, which get a bootstrap by default.
        """
        interval = interval or self.interval
        drawn = self.method == "bootstrap" or (self.method is None and pooled)
        if interval == "fieller" and drawn:
            interval = "bootstrap_t"
        return {
            "level": self.level,
            "interval": interval,
            **({"n_resamples": self.n_resamples} if drawn else {}),
            "n_permutations": self.n_permutations,
            "seed": self.seed,
            "resampling_unit": "document",
        }

    def few_flips(self, family: int) -> tuple[str, ...]:
        """Return a note where a family of tests is so large that a single test could never be significant."""
        if family <= (1 - self.level) * (self.n_permutations + 1):
            return ()
        text = (
            f"{self.n_permutations} sign flips cannot make a single one of {family} tests significant; "
            f"n_permutations of {20 * family} or more would"
        )
        return (Note(text, "inference"),)
