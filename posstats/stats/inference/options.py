"""Options of inference: one object that checks itself, and what its fields may be.

Neither numpy nor scipy is imported here: the command line has options from this module, and its help should not wait.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

from posstats.arguments import choice, fraction, whole_number
from posstats.vocabulary import Note

#: Interval methods: name -> what it does.
INTERVAL_METHODS = {
    "corrected_jackknife": "t limits (means of squares: score limits), jackknife error without its second-order bias",
    "studentized": "bootstrap-t: replicates divided by their own jackknife standard error",
    "jackknife": "estimate +- t(G-1) times the jackknife standard error",
    "bca": "bias-corrected and accelerated percentile",
    "expanded": "percentile at levels widened from normal to t(G-1) and by sqrt(G/(G-1))",
    "percentile": "percentile of the replicates",
    "basic": "percentile reflected at the estimate",
}
DEFAULT_METHOD = "jackknife"
#: The method whose measured coverage is best, per estimand (docs/calibration.md). Estimands made of pair products have
#: a second-order part that the plain jackknife counts twice; slopes are means and decoding has no pairs to leave out.
DEFAULT_METHODS = {
    "leakage": "corrected_jackknife",
    "share": "corrected_jackknife",
    "magnitude": "corrected_jackknife",
    "removal": "corrected_jackknife",
    "contrast": "corrected_jackknife",
    "slope": "jackknife",
    "decoding": "jackknife",
}
#: Interval methods that leave documents out and draw no replicates.
JACKKNIFES = ("jackknife", "corrected_jackknife")
#: Ways to adjust: Benjamini-Hochberg, Benjamini-Yekutieli, Holm.
METHODS = ("bh", "by", "holm")


#: Most resamples and sign flips: more would not fit into memory, and no result needs them.
MOST_DRAWS = 1_000_000


@dataclass(frozen=True, slots=True)
class Inference:
    """How estimates are resampled and tested. The resampling unit is the document.

    Attributes
    ----------
    level : float
        Confidence level of intervals, between 0 and 1. Withheld are estimates without significance at ``1 - level``.
    method : str, optional
        Interval method: corrected_jackknife, studentized, jackknife, bca, expanded, percentile or basic; for each
        estimand the one with the best measured coverage (docs/calibration.md), if not given.
    n_resamples : int
        Bootstrap replicates, 1 to 1,000,000; a jackknife needs none.
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
            "method": None if self.method is None else choice("method", self.method, INTERVAL_METHODS),
            "adjust": choice("adjust", self.adjust, METHODS),
            "seed": whole_number("seed", self.seed, 0, 2**64 - 1),
        }
        checked |= {
            name: whole_number(name, getattr(self, name), 1, MOST_DRAWS) for name in ("n_resamples", "n_permutations")
        }
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    def of(self, estimand: str) -> "Inference":
        """Return the same with the default method of an estimand (:data:`DEFAULT_METHODS`) where none was given."""
        return replace(self, method=self.method or DEFAULT_METHODS[estimand])

    @property
    def interval(self) -> str:
        """Interval method to use: the jackknife where none was given, nor that of an estimand."""
        return self.method or DEFAULT_METHOD

    def options(self, *without: str) -> dict[str, Any]:
        """Return keyword arguments of estimators; some have no use for all of them."""
        options = {one.name: getattr(self, one.name) for one in fields(self) if one.name not in without}
        return {name: value for name, value in options.items() if value is not None}

    def settings(self) -> dict[str, object]:
        """Return what a result says about its intervals."""
        replicates = {} if self.interval in JACKKNIFES else {"n_resamples": self.n_resamples}
        return {
            "level": self.level,
            "interval": self.interval,
            **replicates,
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
