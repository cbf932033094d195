"""Result objects of sinks at any key: how many by layer, key and token, and whether they go with tokens."""

from dataclasses import dataclass, field
from typing import ClassVar

from posstats.errors import NumericalError
from posstats.results.base import Result


@dataclass(frozen=True, slots=True, repr=False)
class SinkCountResult(Result):
    """Number of sinks, (sequence, head, key) above the threshold: per sequence, by key or by token id.

    Columns added: `n_sinks`, `position_0_share` of them, and beyond position 0 `n_first` at the first occurrence of a
    token and `expected_first`, as many as lie there if the keys of a token are exchangeable.
    """

    title: ClassVar[str] = "Sinks at any key"
    units: ClassVar[str] = "sinks per sequence"
    queries: ClassVar[str] = "at least 16 after the key, sampled in the last three quarters"

    @property
    def keys(self) -> list[str]:
        """Key columns of this table."""
        return [name for name in ("condition", "layers", "key", "token") if name in self.table]

    def check(self) -> None:
        """Raise NumericalError where more sinks lie at first occurrences than there are."""
        Result.check(self)
        beyond = self.table.n_sinks * (1 - self.table.position_0_share.fillna(0)) + 1e-6
        if (self.table[["n_first", "expected_first"]].max(axis=1) > beyond).any():
            raise NumericalError(f"{self.title}: more first occurrences than sinks beyond position 0.")


@dataclass(frozen=True, slots=True, repr=False)
class SinkAnchoringResult(Result):
    """Probability of a sink at tokens that hold one in other documents, minus that of other tokens at their positions.

    Columns added: the two probabilities `selected` and `others`, one-sided permutation `p`, `q` over the layers of one
    condition, `n_sinks` beyond position 0 and `note`.
    """

    title: ClassVar[str] = "Sinks that go with tokens"
    units: ClassVar[str] = "1"
    key_columns: ClassVar[tuple[str, ...]] = ("condition", "layers")
    null: ClassVar[str] = (
        'one-sided permutation test of "sinks beyond position 0 do not go with tokens" '
        "({n_permutations} permutations of whole documents)"
    )
    family: ClassVar[str] = "all rows of the same condition"

    def check(self) -> None:
        """Raise NumericalError unless the estimate is the difference of the two probabilities."""
        Result.check(self)
        if ((self.table.selected - self.table.others - self.table.estimate).abs() > 1e-9).any():
            raise NumericalError(f"{self.title}: a difference does not follow from its two probabilities.")


@dataclass(frozen=True, slots=True, repr=False)
class KeySinkResult(SinkCountResult):
    """Number of sinks per sequence, of all layers and by layer.

    Attributes
    ----------
    by_key, by_token : SinkCountResult
        The same by key, and of all layers by token id, the tokens with most sinks first.
    anchoring : SinkAnchoringResult
        Whether sinks beyond position 0 go with tokens.
    """

    by_key: SinkCountResult = field(kw_only=True)
    by_token: SinkCountResult = field(kw_only=True)
    anchoring: SinkAnchoringResult = field(kw_only=True)
