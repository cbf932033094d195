"""Result objects of reach: residual magnitude under a window, by how far position 0 is."""

from dataclasses import dataclass, field
from typing import ClassVar

from posstats.errors import NumericalError
from posstats.results.base import Result

#: Position 0 is visible to the query; its input depends on position 0, which is hidden; it does not.
ZONES = ("in sight", "within reach", "beyond reach")


@dataclass(frozen=True, slots=True, repr=False)
class ReachSlopeResult(Result):
    """Slope on depth of the residual magnitude at the queries ``W <= i < 2 W``, over the layers with a window.

    Columns added: two-sided `p` of "the slope is 0", `n_layers` and `note`.
    """

    title: ClassVar[str] = "Slope of reach on depth"
    units: ClassVar[str] = "nats^2 per layer"
    key_columns: ClassVar[tuple[str, ...]] = ("condition",)
    queries: ClassVar[str] = "W <= i < 2 W, W the layer's window"
    null: ClassVar[str] = 'two-sided test of "the slope is 0"'


@dataclass(frozen=True, slots=True, repr=False)
class ReachResult(Result):
    """Residual magnitude by layer and bin of queries, in the zone that the windows put them in.

    Key column `zone`: position 0 is `in sight` of the query, ``i < W``; `within reach` of its input,
    ``i <= horizon``; or `beyond reach`, where the expected value is 0. Columns added: `window`, the layer's W in tokens
    (infinite where it has none), `horizon`, the last query within reach, the edges of the bin in windows,
    `first_window` and `last_window`, sign-flip `p` of "no mean departure in this bin" and `q`.

    Attributes
    ----------
    slope : ReachSlopeResult
        What accumulates with depth.
    """

    slope: ReachSlopeResult = field(kw_only=True)

    title: ClassVar[str] = "Reach of position 0 under windows"
    units: ClassVar[str] = "nats^2"
    column_units: ClassVar[dict[str, str]] = {"window": "tokens", "horizon": "tokens"}
    key_columns: ClassVar[tuple[str, ...]] = ("condition", "layer", "zone", "queries")
    queries: ClassVar[str] = "those of the bin, departing from the steady state"
    null: ClassVar[str] = 'one-sided sign-flip test of "the departure has no mean in the bin" ({n_permutations} flips)'
    family: ClassVar[str] = "all rows of the same condition and zone"

    def check(self) -> None:
        """Raise NumericalError where a zone does not follow from window and horizon."""
        Result.check(self)
        # A bin lies in one zone, that of its first query.
        first = self.table.queries.str.extract(r"\[(\d+),")[0].astype(float)
        sees = ~(first >= self.table.window)
        expected = sees.map({True: ZONES[0], False: ZONES[1]}).where(sees | (first <= self.table.horizon), ZONES[2])
        if (expected != self.table.zone).any():
            raise NumericalError(f"{self.title}: a zone does not follow from the windows.")
