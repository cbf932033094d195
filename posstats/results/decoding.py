"""Result objects of decoding: scores of two groups of features and the parts they are split into."""

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd

from posstats.errors import NumericalError
from posstats.results.base import ALL_QUERIES, Result

#: Rounding allowed between a score and the sum of its parts.
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, repr=False)
class DecodingResult(Result):
    """How well position is decoded from denominators and residual stream: cross-validated R-squared, per layer.

    Key column `part`: the scores `denominator`, `residual` and `both`, and what they are split into,
    `unique_denominator`, `unique_residual`, `common`, `shapley_denominator` and `shapley_residual`. Columns added:
    two-sided `p` of "the part is at chance", `q` over the layers of one condition and part, `note` where an interval is
    withheld (NaN) or features were left out.
    """

    title: ClassVar[str] = "Decoding of log2(i + 1)"
    units: ClassVar[str] = "1"
    key_columns: ClassVar[tuple[str, ...]] = ("condition", "layer", "part")
    queries: ClassVar[str] = ALL_QUERIES
    null: ClassVar[str] = 'two-sided test of "the score, or part, is 0"'
    family: ClassVar[str] = "all layers of the same condition and part"
    #: Score of features that know nothing.
    chance: ClassVar[float] = 0.0

    def check(self) -> None:
        """Raise NumericalError unless the parts add up: Shapley parts to `both`, unique and common to each group."""
        Result.check(self)
        wide = self.table.pivot(index=["condition", "layer"], columns="part", values="estimate")
        for group in ("denominator", "residual"):
            self._require(wide[f"unique_{group}"] + wide["common"], wide[group] - self.chance)
        self._require(wide["shapley_denominator"] + wide["shapley_residual"], wide["both"] - self.chance)

    def _require(self, parts: pd.Series, whole: pd.Series) -> None:
        error = float((parts - whole).abs().max(skipna=False))
        if not error <= _TOLERANCE * (1 + float(whole.abs().max())):
            raise NumericalError(
                f"{self.title}: the parts miss the whole by {error:.3g}; this result cannot be trusted."
            )


@dataclass(frozen=True, slots=True, repr=False)
class DiscriminationResult(DecodingResult):
    """How well two positions are told apart: area under the ROC curve (AUC), per layer.

    As :class:`DecodingResult`, for the AUC; the parts split the AUC above one half. Where an AUC is exactly 1 (or 0),
    its limit is the exact binomial one and `note` says so.
    """

    title: ClassVar[str] = "Discriminability of two positions"
    queries: ClassVar[str] = ""
    null: ClassVar[str] = 'two-sided test of "the AUC is 1/2", of a part that it is 0'
    chance: ClassVar[float] = 0.5
