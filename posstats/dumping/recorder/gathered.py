"""What is gathered of a layer's logits and weights, block of queries after block of queries."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from posstats.vocabulary import RECEIVED_DISTANCE, analysed_half, received_queries, reference_queries

#: Largest difference of two logits whose exponentials can be summed in single precision.
_SAFE_SPREAD = 80.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which logits are kept of sequences of one length.

    Attributes
    ----------
    length : int
        Tokens of a sequence, a multiple of 4.
    offsets : tuple of int
        Distances from query to key at which logits are kept.
    """

    length: int
    offsets: tuple[int, ...]

    @property
    def analysed(self) -> int:
        """Analysed queries, the first half; as many keys and lags."""
        return analysed_half(self.length)

    @property
    def reference(self) -> list[int]:
        """Queries of the steady state."""
        return reference_queries(self.length)

    @property
    def received(self) -> list[int]:
        """Queries at which the attention on keys is sampled."""
        return received_queries(self.length)


def by_lag(block: torch.Tensor) -> torch.Tensor:
    """View a block of logits by the distance from query to key.

    Parameters
    ----------
    block : torch.Tensor
        (..., query, key), contiguous, with the keys in *descending* order, the last query and the first key being the
        same token.

    Returns
    -------
    torch.Tensor
        (..., query, lag) for the lags 0 .. key-1, nothing being copied: a row goes on with cells of the next one where
        its own keys end.

    Examples
    --------
    >>> by_lag(torch.tensor([[13, 12, 11, 10], [23, 22, 21, 20]]))[:, :3].tolist()  # queries 2 and 3 of keys 3 .. 0
    [[12, 11, 10], [23, 22, 21]]
    """
    *lead, queries, keys = block.shape
    # Each row begins one cell earlier than the row before, relative to its own first key.
    strides = (*block.stride()[:-2], keys - 1, 1)
    return block.as_strided((*lead, queries, keys), strides, block.storage_offset() + queries - 1)


def log_prefix_sums(logits: torch.Tensor) -> torch.Tensor:
    """Log of the sum of the exponentials of the first logits, for every number of them.

    Parameters
    ----------
    logits : torch.Tensor
        (..., lag); the first one finite.

    Returns
    -------
    torch.Tensor
        (..., lag): ``log(sum over d <= lag of exp logits[..., d])``.

    Examples
    --------
    >>> log_prefix_sums(torch.tensor([0.0, -torch.inf, 0.0])).exp().round(decimals=3).tolist()
    [1.0, 1.0, 2.0]
    """
    largest = logits.amax(-1, keepdim=True)
    if (largest - logits[..., :1]).max() < _SAFE_SPREAD:
        return (logits - largest).exp_().cumsum(-1).log_().add_(largest)
    return logits.logcumsumexp(-1)  # several times slower, safe where the first exponentials would vanish


class LinearFit:
    """Sums over visible pairs that make two linear regressions of the logits exact: on the offset, and on positions.

    Parameters
    ----------
    first : torch.Tensor
        int64, (token,): the first visible key.
    """

    def __init__(self, first: torch.Tensor) -> None:
        position = torch.arange(len(first), device=first.device, dtype=torch.float64)
        first = first.double()
        count = position - first + 1
        self._count = count.sum()
        middle = (position + first) / 2
        self._query = position - (count * position).sum() / self._count
        self._centre = (count * middle).sum() / self._count
        self.key = position - self._centre
        # Second moments of query and key over pairs; a run of n keys has variance (n^2 - 1) / 12 about its middle.
        middle = middle - self._centre
        self._moments = [
            float((count * x).sum() / self._count)
            for x in (self._query**2, self._query * middle, middle**2 + (count**2 - 1) / 12)
        ]
        self._sums: list[torch.Tensor] = []

    def add(self, block: torch.Tensor, keys: torch.Tensor, queries: torch.Tensor) -> None:
        """Take in a block of logits, (..., query, key), 0 where a key is not visible."""
        squares = torch.linalg.vector_norm(block, dim=-1).double().square_().sum(-1)
        rows = block.sum(-1).double()
        columns = (block @ self.key[keys].to(block.dtype)).double()
        sums = torch.stack([rows.sum(-1), rows @ self._query[queries], columns.sum(-1), squares])
        self._sums.append(sums)

    def r2(self, eps: float) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """R-squared on the offset and on both positions, and whether all logits are finite.

        Parameters
        ----------
        eps : float
            Relative rounding error of the logits: a smaller variance than that of their rounding is none.
        """
        total, by_query, by_key, squares = torch.stack(self._sums).sum(0) / self._count
        variance = squares - total**2
        varies = variance > 16 * eps * squares
        query, cross, key = self._moments
        spread, determinant = query - 2 * cross + key, query * key - cross**2
        if spread <= 0:  # every query sees itself alone
            nothing = torch.full_like(total, torch.nan)
            return nothing, nothing, squares.isfinite().all()
        offset = (by_query - by_key) ** 2 / spread
        position = (key * by_query**2 - 2 * cross * by_query * by_key + query * by_key**2) / determinant
        r2 = [torch.where(varies, explained / variance, torch.nan) for explained in (offset, position)]
        return r2[0], r2[1], squares.isfinite().all()


class SteadyState:
    """Means over the reference queries, lag by lag.

    Parameters
    ----------
    wanted : Wanted
        What is kept.
    first : torch.Tensor
        int64, (token,): the first visible key.
    empty : callable
        A tensor with the layer's leading dimensions and further ones.
    """

    def __init__(self, wanted: Wanted, first: torch.Tensor, empty: Callable[..., torch.Tensor]) -> None:
        self._queries = wanted.reference
        self._last = torch.arange(len(first), device=first.device) - first  # the largest visible lag of each query
        self._lag = torch.arange(wanted.analysed, device=first.device)
        self._logit, self._log_sum, self._square = (empty(wanted.analysed).zero_() for _ in range(3))

    def add(self, lags: torch.Tensor, start: int, stop: int) -> None:
        """Take in the queries start .. stop-1, (..., query, lag)."""
        rows = [query - start for query in self._queries if start <= query < stop]
        if not rows:
            return
        count = min(len(self._lag), lags.shape[-1])
        logits = lags[..., rows[0] : rows[-1] + 1 : self._step, :count]
        hidden = self._lag[:count] > self._last[[start + row for row in rows], None]
        masked = bool(hidden.any())
        if masked:
            logits = logits.masked_fill(hidden, -torch.inf)
        sums = log_prefix_sums(logits)
        square = (logits - sums[..., -1:]).square_()
        for total, values in ((self._logit, logits), (self._log_sum, sums), (self._square, square)):
            total[..., :count] += (values.masked_fill(hidden, 0) if masked else values).sum(-2)

    @property
    def _step(self) -> int:
        return self._queries[1] - self._queries[0] if len(self._queries) > 1 else 1

    def means(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean logits and mean log sums, (..., lag); mean square of their difference from the whole log sum, (...).

        NaN where no reference query sees the key at that lag.
        """
        count = (self._lag <= self._last[self._queries, None]).sum(0)
        return self._logit / count, self._log_sum / count, (self._square / count).nanmean(-1)


class AttentionReceived:
    """Mean attention on keys of the first half, over sampled queries that see them from some distance.

    Parameters
    ----------
    wanted, first, empty
        As of :class:`SteadyState`.
    """

    def __init__(self, wanted: Wanted, first: torch.Tensor, empty: Callable[..., torch.Tensor]) -> None:
        self._queries = torch.tensor(wanted.received, device=first.device)
        self._key = torch.arange(wanted.analysed, device=first.device)
        self._first = first
        self._sum = empty(wanted.analysed).zero_()

    def add(self, weights: torch.Tensor, factor: torch.Tensor, keys: torch.Tensor, start: int, stop: int) -> None:
        """Take in the queries start .. stop-1.

        Parameters
        ----------
        weights : torch.Tensor
            (..., query, key): attention on descending keys but for a factor of the query, 0 on key 0 and hidden ones.
        factor : torch.Tensor
            (..., query).
        keys : torch.Tensor
            int64, (key,).
        start, stop : int
            The queries.
        """
        queries = self._queries[(self._queries >= start) & (self._queries < stop)]
        skipped = max(0, stop - len(self._key))
        keys = keys[skipped:]
        if len(queries) and len(keys):
            rows = queries - start
            near = queries[:, None] - keys < RECEIVED_DISTANCE
            attention = weights[..., rows, skipped:] * factor[..., rows, None]
            low = int(keys[-1])
            self._sum[..., low : low + len(keys)] += attention.masked_fill_(near, 0).sum(-2).flip(-1)

    def mean(self, sink_weight: torch.Tensor) -> torch.Tensor:
        """Mean attention on every key, (..., key), given that on key 0, (..., token); NaN where there is none."""
        far = self._queries[:, None] - self._key >= RECEIVED_DISTANCE
        count = (far & (self._first[self._queries, None] <= self._key)).sum(0)
        self._sum[..., 0] = (sink_weight[..., self._queries] * far[:, 0]).sum(-1)
        return self._sum / count
