"""Result objects of model-level statements, and of tables that put earlier metrics beside ours."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pandas as pd

from posstats.errors import NumericalError
from posstats.results.base import Result
from posstats.vocabulary import RESIDUAL_TERMS, TERMS

#: Rounding allowed between shares and what they sum to.
_TOLERANCE = 1e-6


@dataclass(frozen=True, slots=True, repr=False)
class ModelLevelResult(Result):
    """What holds for a model's heads: the mean over heads and layers of a share, from a mixed model.

    Columns added: two-sided `p` of "the mean is 0", `df`, `layer_sd` (standard deviation of layers), `head_sd` (of
    heads within a layer, beyond their sampling error), `n_layers`, `n_heads`, `n_excluded` (heads without a defined
    share), `converged`, and `note`.

    Attributes
    ----------
    heads : pandas.DataFrame
        The estimates that went in, one row per condition, layer and head: `estimate`, `se`, `leakage`, `leakage_q`.
        NaN where a head was excluded.
    """

    heads: pd.DataFrame = field(default_factory=pd.DataFrame)

    title: ClassVar[str] = "Mean share over heads"
    units: ClassVar[str] = "1"
    null: ClassVar[str] = 'two-sided test of "the mean over heads is 0"'

    def check(self) -> None:
        """Raise NumericalError unless every head is either in the fit or counted as excluded."""
        Result.check(self)
        for row in self.table.itertuples():
            values = self.heads.estimate[self.heads.condition == row.condition]
            if (row.n_heads, row.n_excluded) != (values.notna().sum(), values.isna().sum()):
                raise NumericalError(f"{self.title}: the heads of {row.condition} do not add up to those of the fit.")


@dataclass(frozen=True, slots=True, repr=False)
class ModelSlopeResult(ModelLevelResult):
    """What holds for a model's heads: the mean over heads and layers of a slope on log2(i + 1), from a mixed model.

    As :class:`ModelLevelResult`; every head has a slope, and `heads` holds no leakage.
    """

    title: ClassVar[str] = "Mean position slope over heads"
    units: ClassVar[str] = "nats per doubling of position"


@dataclass(frozen=True, slots=True, repr=False)
class WideResult(Result):
    """Several metrics side by side: one row per case, one column per metric, instead of one `estimate` column.

    `column_units` names every metric, with its unit.
    """

    def check(self) -> None:
        """Raise NumericalError where a column that must exist is missing."""
        if missing := set(self.column_units) - set(self.table):
            raise NumericalError(f"{self.title}: the table lacks {', '.join(sorted(missing))}.")


@dataclass(frozen=True, slots=True, repr=False)
class EarlierMetricsResult(WideResult):
    """Earlier metrics of position and sinks beside leakage and the residual share, per condition and layer.

    What each column is and cannot see: :func:`posstats.estimators.earlier_metrics.earlier_metrics`.
    """

    title: ClassVar[str] = "Earlier metrics beside leakage and residual share"
    column_units: ClassVar[dict[str, str]] = {
        "linear_delta_r2": "1",
        "diagonal_fraction": "1",
        "diagonal_rms": "nats",
        "sink_rate": "1",
        "massive_activations": "1",
        "first_norm_ratio": "1",
        "leakage": "nats^2",
        "leakage_low": "nats^2",
        "leakage_high": "nats^2",
        "leakage_q": "1",
        "residual_share": "1",
        "residual_share_low": "1",
        "residual_share_high": "1",
    }

    def check(self) -> None:
        """Raise NumericalError where an interval is upside down or a fraction lies outside [0, 1]."""
        WideResult.check(self)
        for name in ("leakage", "residual_share"):
            if (self.table[f"{name}_low"] > self.table[f"{name}_high"]).any():
                raise NumericalError(f"{self.title}: an interval of {name} has its lower limit above its upper limit.")
        fractions = self.table[["linear_delta_r2", "diagonal_fraction", "sink_rate"]]
        if ((fractions < -_TOLERANCE) | (fractions > 1 + _TOLERANCE)).any(axis=None):
            raise NumericalError(f"{self.title}: a fraction lies outside [0, 1].")


@dataclass(frozen=True, slots=True, repr=False)
class TrapResult(WideResult):
    """Fields with one known effect each: which term our attribution gives it to, and what earlier metrics say.

    What each column is: :func:`posstats.estimators.earlier_metrics.trap_table`.
    """

    title: ClassVar[str] = "Attribution of known fields"
    key_columns: ClassVar[tuple[str, ...]] = ("field",)
    column_units: ClassVar[dict[str, str]] = {
        "leakage": "nats^2",
        **{f"share_{term}": "1" for term in (*TERMS[1:], "residual")},
        **{f"magnitude_{term}": "nats^2" for term in (*TERMS[1:], "residual")},
        "linear_delta_r2": "1",
        "diagonal_fraction": "1",
        "sink_rate": "1",
    }

    def check(self) -> None:
        """Raise NumericalError unless mask and residual shares sum to 1 and the residual to its three terms."""
        WideResult.check(self)
        shares = self.table.filter(like="share_").dropna()
        parts = shares[[f"share_{term}" for term in RESIDUAL_TERMS]].sum(axis=1)
        off = np.maximum((parts - shares.share_residual).abs(), (shares.share_mask + shares.share_residual - 1).abs())
        if (off > _TOLERANCE * (1 + shares.abs().max(axis=1))).any():
            raise NumericalError(f"{self.title}: the shares miss their sum by {off.max():.3g}.")
