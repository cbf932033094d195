"""The estimators of docs/method.md sections 1, 2, 3 and 6 once more, as plainly as they can be written.

Explicit query x key logits, Python loops, float64, an explicit double loop over pairs of sequences: slow on purpose and
sharing nothing with the package, so that an agreement between the two means something.
"""

import math

import numpy as np
import xarray as xr

from posstats.dataset.seals import totals
from posstats.vocabulary import COORDINATES, SCHEMA_VERSION, VARIABLES

TERMS = ("relative", "mask", "sink", "redistribution")
RESIDUAL_TERMS = ("sink", "redistribution")
#: Everything that is compared: the terms, what they add up to, and the mask in either order.
NAMES = (*TERMS, "residual", "log_attention", "mask_first", "mask_last")
#: The variables of a dump that the estimators read.
ANALYSED_VARIABLES = (
    "logit",
    "sink_logit",
    "log_denominator_rest",
    "steady_logit",
    "steady_log_sum",
    "learned_sink",
    "visible_keys",
)


def causal(length, window=None):
    """Visible keys, (query, key): causal, or the last `window` keys up to the query."""
    visible = np.zeros((length, length), dtype=bool)
    for i in range(length):
        for j in range(i + 1):
            visible[i, j] = window is None or i - j < window
    return visible


def reference_queries(length):
    """Queries of the steady state: min(T/4, 64) of the last quarter, evenly spaced up to the last query."""
    quarter = length // 4
    every = max(1, quarter // 64)
    return sorted(length - 1 - k * every for k in range(min(quarter, 64)))


def octave_bins(n_queries):
    """Queries of [2, 4), [4, 8), ... within the analysed half; no bin of a single query."""
    bins = []
    low = 2
    while low < n_queries:
        bins.append(list(range(low, min(2 * low, n_queries))))
        low *= 2
    return [one for one in bins if len(one) > 1]


def log_or_nothing(x):
    """Logarithm, minus infinity of 0."""
    return math.log(x) if x > 0 else -math.inf


class Brute:
    """Terms and pair products of one condition.

    Parameters
    ----------
    logits : array, (sequence, layer, head, query, key) or, for a single layer, (sequence, head, query, key)
        All T queries and keys; the first half of the queries is analysed.
    documents : sequence of labels, one per sequence
    offsets : sequence of int
    visible : bool array, (layer, query, key) or (query, key); causal if omitted
    learned_sink : array, (layer, head) or (head,); -inf where there is none
    weights : numbers, one per document in sorted order of the labels: how often a replicate drew the document
    order : "shapley", "mask_first" or "mask_last"

    Attributes
    ----------
    reference : array, (layer, head, lag)
    log_sum : array, (layer, head, number of keys): G(m), minus infinity for no key
    most : list, one per layer: the number of keys of the steady state
    terms : dict, name -> array, (sequence, layer, head, query, offset)
        :data:`NAMES`, ``log_attention`` taken from an explicit softmax, not from the terms; NaN where the key is
        position 0, absent or masked.
    """

    def __init__(self, logits, documents, offsets, visible=None, learned_sink=None, weights=None, order="shapley"):
        logits = np.asarray(logits, dtype=np.float64)
        self.logits = logits[:, None] if logits.ndim == 4 else logits
        n_sequences, n_layers, n_heads, self.length = self.logits.shape[:4]
        self.n_queries = self.length // 2
        self.shape = (n_sequences, n_layers, n_heads, self.n_queries)
        visible = causal(self.length) if visible is None else visible
        self.visible = np.broadcast_to(np.asarray(visible, dtype=bool), (n_layers, self.length, self.length))
        self.r = reference_queries(self.length)
        self._prepare(documents, offsets, -np.inf if learned_sink is None else learned_sink, weights, order)

    def _prepare(self, documents, offsets, learned_sink, weights, order):
        n_sequences, n_layers, n_heads, _ = self.shape
        self.documents = list(documents)
        self.offsets = list(offsets)
        self.order = order
        self.learned_sink = np.broadcast_to(np.asarray(learned_sink, dtype=np.float64), (n_layers, n_heads))
        labels = sorted(set(self.documents))
        weights = [1.0] * len(labels) if weights is None else [float(w) for w in weights]
        if len(weights) != len(labels):
            raise ValueError(f"{len(weights)} weights for {len(labels)} documents")
        of_document = dict(zip(labels, weights, strict=True))
        self.weights = [of_document[label] for label in self.documents]
        if len(self.documents) != n_sequences:
            raise ValueError(f"{len(self.documents)} documents for {n_sequences} sequences")
        self._steady_state()
        self._terms()

    def _steady_logit(self, n, layer, head, d):
        values = [self.logits[n, layer, head, r, r - d] for r in self.r if self.visible[layer, r, r - d]]
        return sum(values) / len(values)

    def _steady_log_sum(self, n, layer, head, m):
        values = []
        for r in self.r:
            if all(self.visible[layer, r, r - d] for d in range(m)):
                values.append(math.log(sum(math.exp(self.logits[n, layer, head, r, r - d]) for d in range(m))))
        return sum(values) / len(values)

    def _most_keys(self, layer):
        return max(sum(bool(self.visible[layer, r, r - d]) for d in range(self.n_queries)) for r in self.r)

    def _z_rest(self, n, layer, head, i):
        return sum(math.exp(self.logits[n, layer, head, i, j]) for j in range(1, i + 1) if self.visible[layer, i, j])

    def _sink_logit(self, n, layer, head, i):
        return self.logits[n, layer, head, i, 0]

    def _logit(self, n, layer, head, i, o):
        return self.logits[n, layer, head, i, i - self.offsets[o]]

    def _mean(self, values):
        return sum(w * x for w, x in zip(self.weights, values, strict=True)) / sum(self.weights)

    def _steady_state(self):
        n_sequences, n_layers, n_heads, n_queries = self.shape
        self.reference = np.full((n_layers, n_heads, n_queries), np.nan)
        self.log_sum = np.full((n_layers, n_heads, n_queries + 1), np.nan)
        self.log_sum[..., 0] = -np.inf
        self.most = [self._most_keys(layer) for layer in range(n_layers)]
        for layer, head in np.ndindex(n_layers, n_heads):
            for d in range(self.most[layer]):
                sequences = range(n_sequences)
                self.reference[layer, head, d] = self._mean([self._steady_logit(n, layer, head, d) for n in sequences])
                self.log_sum[layer, head, d + 1] = self._mean(
                    [self._steady_log_sum(n, layer, head, d + 1) for n in sequences]
                )

    def _world(self, layer, head, n, i, c, mask, sink):
        """w(M, S) of one sequence and query, straight from its definition."""
        g, b, most = self.log_sum[layer, head], self.learned_sink[layer, head], self.most[layer]
        i, visible = i
        m = visible - c
        z_rest = self._z_rest(n, layer, head, i)
        total = math.exp(g[m] if mask else g[most - c])
        if c and sink:
            total += math.exp(self._sink_logit(n, layer, head, i) - math.log(z_rest) + g[m])
        elif c:
            total += math.exp(g[visible]) - math.exp(g[m]) if mask else math.exp(g[most]) - math.exp(g[most - 1])
        total += math.exp(b - math.log(z_rest) + g[m] if sink else b)
        return -math.log(total)

    def _terms(self):
        self.terms = {name: np.full((*self.shape, len(self.offsets)), np.nan) for name in NAMES}
        for n, layer, head, i in np.ndindex(*self.shape):
            z_rest = self._z_rest(n, layer, head, i)
            if z_rest == 0:
                continue
            g = self.log_sum[layer, head]
            c = int(self.visible[layer, i, 0])
            visible = int(self.visible[layer, i, : i + 1].sum())
            e0 = math.exp(self._sink_logit(n, layer, head, i)) if c else 0.0
            z = z_rest + e0 + math.exp(self.learned_sink[layer, head])
            w = {
                (mask, sink): self._world(layer, head, n, (i, visible), c, mask, sink)
                for mask in (0, 1)
                for sink in (0, 1)
            }
            mask_first, mask_last = w[1, 0] - w[0, 0], w[1, 1] - w[0, 1]
            mask = {"mask_first": mask_first, "mask_last": mask_last, "shapley": (mask_first + mask_last) / 2}
            sink_first, sink_last = w[0, 1] - w[0, 0], w[1, 1] - w[1, 0]
            sink = {"mask_first": sink_last, "mask_last": sink_first, "shapley": (sink_first + sink_last) / 2}
            for o, d in enumerate(self.offsets):
                j = i - d
                if j < 1 or not self.visible[layer, i, j]:
                    continue
                where = (n, layer, head, i, o)
                s, ref = self._logit(n, layer, head, i, o), self.reference[layer, head, d]
                redistribution = (s - math.log(z_rest)) - (ref - g[visible - c])
                found = {
                    "relative": ref + w[0, 0],
                    "mask": mask[self.order],
                    "sink": sink[self.order],
                    "redistribution": redistribution,
                    "residual": sink[self.order] + redistribution,
                    "log_attention": math.log(math.exp(s) / z),
                    "mask_first": mask_first,
                    "mask_last": mask_last,
                }
                for name, value in found.items():
                    self.terms[name][where] = value

    def default_queries(self):
        """max offset < i < Q."""
        return list(range(max(self.offsets) + 1, self.n_queries))

    def existing_offsets(self, queries, layer):
        """Indices of the offsets whose key is an ordinary visible one for every query."""
        return [
            o for o, d in enumerate(self.offsets) if all(i - d >= 1 and self.visible[layer, i, i - d] for i in queries)
        ]

    def _pair_mean(self, x, z):
        """Weighted mean of x[n] * z[m] over the ordered pairs of sequences from different documents."""
        total, count = 0.0, 0.0
        for n, document_n in enumerate(self.documents):
            for m, document_m in enumerate(self.documents):
                if document_n != document_m:
                    weight = self.weights[n] * self.weights[m]
                    total = total + weight * x[n] * z[m]
                    count += weight
        return total / count

    def cross_by_offset(self, x, z, queries=None):
        """C(x, z) per offset, (layer, head, offset); NaN for offsets that some query lacks."""
        queries = self.default_queries() if queries is None else list(queries)
        out = np.full((*self.learned_sink.shape, len(self.offsets)), np.nan)
        for layer in range(self.shape[1]):
            for o in self.existing_offsets(queries, layer):
                a = self.terms[x][:, layer, :, queries, o]  # query first: numpy puts a listed axis there
                b = self.terms[z][:, layer, :, queries, o]
                a = (a - a.mean(axis=0)).swapaxes(0, 1)
                b = (b - b.mean(axis=0)).swapaxes(0, 1)
                out[layer, :, o] = self._pair_mean(a, b).mean(axis=0)
        return out

    def cross(self, term, other="log_attention", queries=None):
        """C(term, other) summed over the offsets, (layer, head)."""
        return np.nansum(self.cross_by_offset(term, other, queries), axis=2)

    def leakage(self, queries=None):
        """C(y, y), y = log A, summed over the offsets, (layer, head)."""
        return self.cross("log_attention", "log_attention", queries)

    def size(self, term, queries=None):
        """C(term, term) summed over the offsets, (layer, head)."""
        return self.cross(term, term, queries)

    def shares(self, queries=None):
        """Share of every term, of the residual and of the mask in either order, name -> (layer, head)."""
        leakage = self.leakage(queries)
        return {name: self.cross(name, "log_attention", queries) / leakage for name in NAMES if name != "log_attention"}

    def pooled_shares(self, queries=None):
        """The same over all heads and layers: ratio of sums, name -> float."""
        leakage = self.leakage(queries).sum()
        return {
            name: self.cross(name, "log_attention", queries).sum() / leakage
            for name in NAMES
            if name != "log_attention"
        }

    def magnitude(self, term, queries):
        """Pair product of the term itself, mean over queries and offsets; of log attention, of log A - relative."""
        queries = list(queries)
        out = np.full(self.learned_sink.shape, np.nan)
        for layer, head in np.ndindex(*out.shape):
            products = []
            for o in self.existing_offsets(queries, layer):
                values = self.terms[term][:, layer, head, :, o]
                if term == "log_attention":
                    values = values - self.terms["relative"][:, layer, head, :, o]
                departure = np.stack([values[:, i] for i in queries], axis=1)
                products.append(self._pair_mean(departure, departure))
            if products:
                out[layer, head] = np.mean(products)
        return out


class BruteDump(Brute):
    """The same from the recorded variables of a dump (an xarray.Dataset in the dump schema), one condition of it."""

    def __init__(self, dataset, condition="baseline", weights=None, order="shapley"):
        one = dataset.sel(condition=condition)
        dims = ("sequence", "layer", "head")
        last = {"logit": ("query", "offset"), "sink_logit": ("query",), "log_denominator_rest": ("query",)}
        last |= {"steady_logit": ("lag",), "steady_log_sum": ("lag",)}
        self.recorded = {name: one[name].transpose(*dims, *own).values.astype(np.float64) for name, own in last.items()}
        self.shape = self.recorded["sink_logit"].shape
        self.n_queries = self.shape[3]
        self.visible = np.zeros((self.shape[1], self.n_queries, self.n_queries), dtype=bool)
        for layer, i in np.ndindex(self.shape[1], self.n_queries):
            self.visible[layer, i, i + 1 - int(one.visible_keys.values[layer, i]) : i + 1] = True
        self._prepare(one.document.values.tolist(), one.offset.values.tolist(), one.learned_sink.values, weights, order)

    def _most_keys(self, layer):
        return int(np.isfinite(self.recorded["steady_log_sum"][0, layer, 0]).sum())

    def _steady_logit(self, n, layer, head, d):
        return self.recorded["steady_logit"][n, layer, head, d]

    def _steady_log_sum(self, n, layer, head, m):
        return self.recorded["steady_log_sum"][n, layer, head, m - 1]

    def _z_rest(self, n, layer, head, i):
        return math.exp(self.recorded["log_denominator_rest"][n, layer, head, i])

    def _sink_logit(self, n, layer, head, i):
        return self.recorded["sink_logit"][n, layer, head, i]

    def _logit(self, n, layer, head, i, o):
        return self.recorded["logit"][n, layer, head, i, o]


def removal(baseline, condition, queries):
    """1 - residual magnitude under the condition / at baseline, a ratio of sums over heads and layers."""
    return 1 - condition.magnitude("residual", queries).sum() / baseline.magnitude("residual", queries).sum()


def dump_dataset(conditions, documents, offsets, visible=None, learned_sink=None):
    """What a dump of these logits would hold, for the estimators to read.

    Parameters
    ----------
    conditions : dict, condition name -> logits as in :class:`Brute` (all of one shape)
    documents, offsets, visible, learned_sink : as in :class:`Brute`

    Returns
    -------
    xarray.Dataset
        `ANALYSED_VARIABLES` and their totals in the dump schema, float64.
    """
    brutes = [Brute(logits, documents, offsets, visible, learned_sink) for logits in conditions.values()]
    first = brutes[0]
    n_sequences, n_layers, n_heads, n_queries = first.shape
    block = (len(conditions), n_sequences, n_layers, n_heads)
    data = {
        "logit": np.full((*block, n_queries, len(first.offsets)), np.nan),
        "sink_logit": np.full((*block, n_queries), np.nan),
        "log_denominator_rest": np.full((*block, n_queries), -np.inf),
        "steady_logit": np.full((*block, n_queries), np.nan),
        "steady_log_sum": np.full((*block, n_queries), np.nan),
        "learned_sink": np.array(first.learned_sink),
        "visible_keys": first.visible[:, :n_queries, :n_queries].sum(axis=2),
    }
    for c, brute in enumerate(brutes):
        for n, layer, head in np.ndindex(n_sequences, n_layers, n_heads):
            where = (c, n, layer, head)
            for i in range(n_queries):
                if first.visible[layer, i, 0]:
                    data["sink_logit"][(*where, i)] = brute.logits[n, layer, head, i, 0]
                data["log_denominator_rest"][(*where, i)] = log_or_nothing(brute._z_rest(n, layer, head, i))
                for o, d in enumerate(first.offsets):
                    if i - d >= 1 and first.visible[layer, i, i - d]:
                        data["logit"][(*where, i, o)] = brute.logits[n, layer, head, i, i - d]
            for d in range(brute.most[layer]):
                data["steady_logit"][(*where, d)] = brute._steady_logit(n, layer, head, d)
                data["steady_log_sum"][(*where, d)] = brute._steady_log_sum(n, layer, head, d + 1)
    data |= totals(data)
    values = {
        "condition": list(conditions),
        "sequence": np.arange(n_sequences),
        "document": first.documents,
        "layer": np.arange(n_layers),
        "head": np.arange(n_heads),
        "query": np.arange(n_queries),
        "offset": first.offsets,
        "lag": np.arange(n_queries),
    }
    return xr.Dataset(
        {
            name: (
                VARIABLES[name].dims,
                data[name],
                {"units": VARIABLES[name].units, "long_name": VARIABLES[name].long_name},
            )
            for name in data
        },
        coords={
            name: (COORDINATES[name][0], value, {"units": COORDINATES[name][1], "long_name": COORDINATES[name][2]})
            for name, value in values.items()
        },
        attrs={
            "schema_version": SCHEMA_VERSION,
            "model": "explicit logits",
            "length": first.length,
            "reference_queries": first.r,
        },
    )
