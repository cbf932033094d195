"""Options of inference: one object that checks itself, and what its fields may be.

Neither numpy nor scipy is imported here: the command line has options from this module, and its help should not wait.
"""

from dataclasses import dataclass

from posstats.errors import InputError

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


@dataclass(frozen=True, slots=True)
class Inference:
    """How estimates are resampled and tested.

    Attributes
    ----------
    level : float
        Confidence level.
    method : str
        Interval method, one of :data:`posstats.stats.inference.options.INTERVAL_METHODS`.
    n_resamples : int
        Bootstrap replicates; the jackknifes need none.
    n_permutations : int
        Sign flips of the leakage test.
    seed : int
        One seed gives one result.
    """

    level: float = 0.95
    method: str = DEFAULT_METHOD
    n_resamples: int = 2000
    n_permutations: int = 9999
    seed: int = 0

    def __post_init__(self) -> None:
        check_interval_options(self.method, self.level)
        for name in ("n_resamples", "n_permutations"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.seed < 0:
            raise InputError(f"seed must not be negative, not {self.seed}.")

    def settings(self) -> dict[str, object]:
        """What a result says about its intervals."""
        replicates = {} if self.method in JACKKNIFES else {"n_resamples": self.n_resamples}
        return {
            "level": self.level,
            "interval": self.method,
            **replicates,
            "n_permutations": self.n_permutations,
            "seed": self.seed,
            "resampling_unit": "document",
        }

    def few_flips(self, family: int) -> tuple[str, ...]:
        """A note where a family of tests is so large that one alone could never be significant."""
        if family <= (1 - self.level) * (self.n_permutations + 1):
            return ()
        return (
            f"{self.n_permutations} sign flips cannot make a single one of {family} tests significant; "
            f"n_permutations of {20 * family} or more would",
        )


def check_interval_options(method: str, level: float) -> None:
    """Raise InputError unless the interval method is known and the level lies in (0, 1)."""
    if method not in INTERVAL_METHODS:
        raise InputError(f"Unknown interval method {method!r}; choose one of {', '.join(INTERVAL_METHODS)}.")
    if not 0 < level < 1:
        raise InputError(f"level must lie between 0 and 1, not {level}.")
