"""Result objects of position 0: its trajectory, the sinks, and the heads that read it."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd

from posstats.errors import NumericalError
from posstats.results.base import ALL_QUERIES, Result

#: Rounding allowed between numbers and what they are made of.
_TOLERANCE = 1e-9


def _require_within(title: str, values: pd.DataFrame, low: float, high: float) -> None:
    if ((values < low - _TOLERANCE) | (values > high + _TOLERANCE)).any(axis=None):
        raise NumericalError(f"{title}: a value lies outside [{low:g}, {high:g}].")


@dataclass(frozen=True, slots=True, repr=False)
class SinkContrastResult(Result):
    """Attention on position 0 of the sink-reading heads, compared: token-anchored or position-anchored?

    Key column `contrast`: `bos_minus_position0`, under `bos@P` the attention on the BOS token at P minus that on
    position 0; `minus_baseline`, the attention on position 0 under the condition minus that under the baseline.
    Columns added: the two means `attention` and `reference_attention`, two-sided `p` of "no difference", `q` over all
    rows of the same contrast, `n_heads` and `note`.
    """

    title: ClassVar[str] = "Attention of sink-reading heads compared"
    units: ClassVar[str] = "1"
    queries: ClassVar[str] = "i >= 16; under bos@P, i >= P + 16"
    null: ClassVar[str] = 'two-sided test of "no difference"'
    family: ClassVar[str] = "all rows of the same contrast"

    def check(self) -> None:
        """Raise NumericalError unless the estimate is the difference of the two means."""
        Result.check(self)
        rows = self.table.dropna(subset=["estimate"])
        _require_within(self.title, rows[["attention", "reference_attention"]], 0.0, 1.0)
        if ((rows.attention - rows.reference_attention - rows.estimate).abs() > _TOLERANCE).any():
            raise NumericalError(f"{self.title}: a difference does not follow from its two means.")


@dataclass(frozen=True, slots=True, repr=False)
class SinkResult(Result):
    """Mean attention on position 0 over the queries i >= 16, per head.

    Columns added: two-sided `p` of "the mean is eps", `q` over all heads of one condition, `sink_reading` (above eps,
    and q below 1 - level), `output_fraction` and `value_norm_ratio` with limits `_low` and `_high`, and `note`.

    Attributes
    ----------
    contrasts : SinkContrastResult
        What the sink-reading heads do under the conditions.
    """

    contrasts: SinkContrastResult = field(kw_only=True)

    title: ClassVar[str] = "Attention on position 0"
    units: ClassVar[str] = "1"
    queries: ClassVar[str] = "i >= 16"
    null: ClassVar[str] = (
        'two-sided test of "the mean attention is {sink_epsilon}": heads significantly below it have '
        "a small p and q too, sink reading says which lie above"
    )
    family: ClassVar[str] = "all heads of the same condition"

    def check(self) -> None:
        """Raise NumericalError where attention is no attention, or a flag does not follow from estimate and q."""
        Result.check(self)
        _require_within(self.title, self.table[["estimate", "output_fraction"]], 0.0, 1.0)
        epsilon, level = (float(str(self.settings[name])) for name in ("sink_epsilon", "level"))
        if ((self.table.estimate > epsilon) & (self.table.q < 1 - level) != self.table.sink_reading).any():
            raise NumericalError(f"{self.title}: a head is flagged against its estimate and q-value.")


@dataclass(frozen=True, slots=True, repr=False)
class IdentificationResult(Result):
    """How often the first token is identified from what heads pass on: accuracy, cross-validated by document.

    Key columns `layers` ("all", or one layer) and `heads` ("sink-reading" or "other"). Columns added: permutation `p`
    of "the heads pass on nothing of the first token", `q` over all rows of the same condition and heads, `chance`,
    `n_heads` and `note`.
    """

    title: ClassVar[str] = "Identification of the first token"
    units: ClassVar[str] = "1"
    key_columns: ClassVar[tuple[str, ...]] = ("condition", "layers", "heads")
    queries: ClassVar[str] = "i >= 16"
    null: ClassVar[str] = (
        'one-sided permutation test of "heads pass on nothing of the first token" '
        "({n_permutations} permutations of whole documents)"
    )
    family: ClassVar[str] = "all rows of the same condition and heads"

    def check(self) -> None:
        """Raise NumericalError where an accuracy lies outside [0, 1] or outside its interval."""
        Result.check(self)
        rows = self.table.dropna(subset=["estimate"])
        _require_within(self.title, rows[["estimate", "low", "high", "chance"]], 0.0, 1.0)
        if ((rows.estimate < rows.low - _TOLERANCE) | (rows.estimate > rows.high + _TOLERANCE)).any():
            raise NumericalError(f"{self.title}: an accuracy lies outside its interval.")


@dataclass(frozen=True, slots=True, repr=False)
class TrajectoryResult(Result):
    """Closedness and fingerprint of the trajectory of position 0, by depth; relative distances.

    Key column `quantity`: `departure` from the trajectory of the same input run alone; distance `within` one first
    token and `between` first tokens, over pairs of sequences from different documents; `between_minus_within`.
    Columns added: two-sided `p` of "no difference" (of `between_minus_within`), `q` over the depths of one condition,
    `largest` over sequences or pairs, the `tolerance` of rounding and whether `largest` `holds` it, and `note`.

    Attributes
    ----------
    identification : IdentificationResult
        Of the first token; without rows where no condition repeats first tokens over documents.
    """

    identification: IdentificationResult = field(kw_only=True)

    title: ClassVar[str] = "Trajectory of position 0"
    units: ClassVar[str] = "1"
    key_columns: ClassVar[tuple[str, ...]] = ("condition", "quantity", "depth")
    null: ClassVar[str] = (
        'two-sided test of "between first tokens is as within one"; the others are described, not tested'
    )
    family: ClassVar[str] = "all depths of the same condition and quantity"

    def check(self) -> None:
        """Raise NumericalError where a mean exceeds its largest value or a verdict does not follow from it."""
        Result.check(self)
        rows = self.table.dropna(subset=["largest"])
        if (rows.estimate > rows.largest + _TOLERANCE).any() or (rows.estimate < -_TOLERANCE).any():
            raise NumericalError(f"{self.title}: a mean distance lies outside those it is made of.")
        judged = rows.dropna(subset=["tolerance"])
        if ((judged.largest <= judged.tolerance) != judged.holds.astype(bool)).any():
            raise NumericalError(f"{self.title}: a verdict does not follow from the largest value.")


@dataclass(frozen=True, slots=True, repr=False)
class ReaderResult(Result):
    """How far replacing the trajectory of position 0 moves the residual terms downstream, by kind of head.

    Key column `quantity`: the displacement of the `sink_reading` heads and of the `other` heads of the same layers
    (nats squared), their `difference` and `ratio`. Columns added: `token` and `depth` of the replacement, `unit`,
    `p`, `q` over the conditions of one quantity, `n_heads`, `n_layers` and `note`.
    """

    title: ClassVar[str] = "Displacement of the residual terms by the trajectory of position 0"
    key_columns: ClassVar[tuple[str, ...]] = ("condition", "quantity")
    queries: ClassVar[str] = ALL_QUERIES
    null: ClassVar[str] = (
        'two-sided test of "no difference" and of "the ratio is 1"; of one kind of heads, '
        'one-sided sign-flip test of "nothing moves in common" ({n_permutations} flips)'
    )
    family: ClassVar[str] = "all rows of the same quantity"

    def check(self) -> None:
        """Raise NumericalError unless difference and ratio follow from the two displacements."""
        Result.check(self)
        wide = self.table.pivot(index="condition", columns="quantity", values="estimate")
        scale = 1e-6 * wide[["sink_reading", "other"]].abs().sum(axis=1)
        off = (wide.sink_reading - wide.other - wide.difference).abs()
        off_ratio = (wide.ratio * wide.other - wide.sink_reading).abs()
        if (np.maximum(off, off_ratio.fillna(0)) > scale + _TOLERANCE * scale.max()).any():
            raise NumericalError(f"{self.title}: difference or ratio do not follow from the two displacements.")
