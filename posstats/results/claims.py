"""Result objects of contrasts and of the ledger of claims: rows of different quantities, each with its unit."""

from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import xarray as xr

from posstats.errors import NumericalError
from posstats.results.base import Result
from posstats.results.verdicts import NOT_TESTABLE, WHOLE, Rule, combined, combined_specific, verdict

#: Rounding allowed between a difference and its two sides.
_TOLERANCE = 1e-9


@dataclass(frozen=True, slots=True, repr=False)
class MixedResult(Result):
    """Rows of different quantities: the unit of `estimate` is a column, `unit`. As a dataset, one dimension, `row`."""

    def _as_arrays(self) -> xr.Dataset:
        # Few combinations of the keys exist.
        return xr.Dataset.from_dataframe(self.table.rename_axis("row")).set_coords(self.keys)


@dataclass(frozen=True, slots=True, repr=False)
class ContrastResult(MixedResult):
    """Two sides and their difference: what each is, with intervals over documents and training runs.

    Columns added: `unit`, two-sided `p` of 0 (sign-flip p of absence for leakage and magnitude of a single run), `q`,
    `df`, the parts of the standard error `se_documents` and `se_runs`, and `note` where a ratio is withheld.
    """

    title: ClassVar[str] = "Contrast"
    null: ClassVar[str] = (
        'two-sided test of "no difference", of one side that it is 0; of leakage or a magnitude of one '
        "run, one-sided sign-flip test ({n_permutations} flips)"
    )
    family: ClassVar[str] = "all rows of the same contrast and quantity"
    key_columns: ClassVar[tuple[str, ...]] = ("contrast", "quantity", "condition", "queries", "term")

    def check(self) -> None:
        """Raise NumericalError unless every difference is that of its two sides."""
        Result.check(self)
        others = [name for name in self.keys if name != "contrast"]
        wide = self.table.pivot_table(index=others, columns="contrast", values="estimate", dropna=False, sort=False)
        first, second, difference = (wide[name] for name in pd.unique(self.table.contrast))
        error = ((second - first) - difference).abs() / (1 + difference.abs())
        if error.max() > _TOLERANCE:
            raise NumericalError(f"{self.title}: a difference misses its two sides by {error.max():.3g}.")


@dataclass(frozen=True, slots=True, repr=False)
class ClaimsResult(MixedResult):
    """The ledger: one row per part of a criterion and model, and one per claim, with its verdict.

    The verdict of a part follows from `estimate`, `low`, `high`, `q`, `specific` and `rule`
    (:func:`posstats.results.verdicts.verdict`); that of a claim from its parts
    (:func:`posstats.results.verdicts.combined`). Where untrained twins were given, `twin` is the mean of what they have
    of a part's size, `difference` the model's minus that, with limits, and `specific` says whether it excludes 0.
    """

    title: ClassVar[str] = "Claims"
    null: ClassVar[str] = (
        'that of the estimate, two-sided of "it is 0", of leakage and magnitudes one-sided by sign flips, of '
        'the number of sink-reading heads of "no head is above the threshold"'
    )
    family: ClassVar[str] = "all p-values of one ledger, that is of one model and dump"
    key_columns: ClassVar[tuple[str, ...]] = ("model", "dump", "claim", "part", "quantity", "condition")

    def check(self) -> None:
        """Raise NumericalError unless every verdict follows from the printed numbers, and a claim's from its parts."""
        Result.check(self)
        level = float(str(self.settings["level"]))
        for (model, dump, claim), rows in self.table.groupby(["model", "dump", "claim"], sort=False):
            parts, whole = rows[rows.part != WHOLE], rows[rows.part == WHOLE]
            rules = [Rule.parse(rule) if rule else None for rule in parts.rule.astype(str)]
            numbers = parts[["estimate", "low", "high"]].astype(float).to_numpy().tolist()
            expected = [
                NOT_TESTABLE if rule is None else verdict(a, low, high, rule, q=q, level=level, specific=specific)
                for (a, low, high), rule, q, specific in zip(numbers, rules, parts.q, parts.specific, strict=True)
            ]
            controls = [rule is not None and rule.is_control for rule in rules]
            of_claim = [combined(zip(expected, controls, strict=True)), combined_specific(parts.specific.tolist())]
            if parts.verdict.tolist() != expected or whole[["verdict", "specific"]].to_numpy().tolist() != [of_claim]:
                raise NumericalError(f"{self.title}: a verdict of {claim} on {model}, {dump}, does not follow.")

    def verdicts(self) -> pd.DataFrame:
        """Return the claims' verdicts: one row per model and dump, one column per claim."""
        claims = self.table[self.table.part == WHOLE]
        wide = claims.pivot_table(
            index=["model", "dump"], columns="claim", values="verdict", aggfunc="first", sort=False
        )
        return wide.sort_index(axis=1).fillna("")
