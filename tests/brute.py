"""The estimators of docs/method.md sections 1, 2, 3 and 6 once more, as plainly as they can be written.

Explicit query x key logits, Python loops, float64, an explicit double loop over pairs of sequences: slow on purpose and
sharing nothing with the package, so that an agreement between the two means something.
"""

import math

import numpy as np
import xarray as xr

from posstats.vocabulary import COORDINATES, SCHEMA_VERSION, VARIABLES

TERMS = ("relative", "mask", "sink", "logit_drift", "denominator_drift")
RESIDUAL_TERMS = ("sink", "logit_drift", "denominator_drift")
#: The variables of a dump that the estimators read.
ANALYSED_VARIABLES = (
    "logit",
    "sink_logit",
    "log_denominator_rest",
    "logit_sum_by_lag",
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


def octave_bins(length):
    """Queries of [2, 4), [4, 8), ...; like every analysed query they end before the last one."""
    bins = []
    low = 2
    while low < length - 1:
        bins.append(list(range(low, min(2 * low, length - 1))))
        low *= 2
    return bins


class Brute:
    """Terms and pair products of one condition.

    Parameters
    ----------
    logits : array, (sequence, layer, head, query, key) or, for a single layer, (sequence, head, query, key)
    documents : sequence of labels, one per sequence
    offsets : sequence of int
    visible : bool array, (layer, query, key) or (query, key); causal if omitted
    learned_sink : array, (layer, head) or (head,); -inf where there is none
    weights : numbers, one per document in sorted order of the labels: how often a replicate drew the document

    Attributes
    ----------
    reference : array, (layer, head, lag)
    z_reference, z_reference_rest, a0_reference : array, (layer, head, query)
    terms : dict, name -> array, (sequence, layer, head, query, offset)
        The five terms, ``residual`` and ``log_attention`` (taken from an explicit softmax, not from the terms);
        NaN where the key is position 0, absent or masked.
    """

    def __init__(self, logits, documents, offsets, visible=None, learned_sink=None, weights=None):
        logits = np.asarray(logits, dtype=np.float64)
        self.logits = logits[:, None] if logits.ndim == 4 else logits
        self.shape = self.logits.shape[:4]
        visible = causal(self.shape[3]) if visible is None else visible
        learned_sink = -np.inf if learned_sink is None else learned_sink
        self._prepare(documents, offsets, visible, learned_sink, weights)

    def _prepare(self, documents, offsets, visible, learned_sink, weights):
        n_sequences, n_layers, n_heads, self.length = self.shape
        self.documents = list(documents)
        self.offsets = list(offsets)
        self.visible = np.broadcast_to(np.asarray(visible, dtype=bool), (n_layers, self.length, self.length))
        self.learned_sink = np.broadcast_to(np.asarray(learned_sink, dtype=np.float64), (n_layers, n_heads))
        labels = sorted(set(self.documents))
        weights = [1.0] * len(labels) if weights is None else [float(w) for w in weights]
        if len(weights) != len(labels):
            raise ValueError(f"{len(weights)} weights for {len(labels)} documents")
        of_document = dict(zip(labels, weights, strict=True))
        self.weights = [of_document[label] for label in self.documents]
        if len(self.documents) != n_sequences:
            raise ValueError(f"{len(self.documents)} documents for {n_sequences} sequences")
        self._reference()
        self._terms()

    def _sum_by_lag(self, n, layer, head, d):
        total = 0.0
        for i in range(d + 1, self.length):
            if self.visible[layer, i, i - d]:
                total += self.logits[n, layer, head, i, i - d]
        return total

    def _z_rest(self, n, layer, head, i):
        z_rest = math.exp(self.learned_sink[layer, head])
        for j in range(1, i + 1):
            if self.visible[layer, i, j]:
                z_rest += math.exp(self.logits[n, layer, head, i, j])
        return z_rest

    def _sink_logit(self, n, layer, head, i):
        return self.logits[n, layer, head, i, 0]

    def _logit(self, n, layer, head, i, o):
        return self.logits[n, layer, head, i, i - self.offsets[o]]

    def _reference(self):
        n_sequences, n_layers, n_heads, length = self.shape
        self.reference = np.full((n_layers, n_heads, length), np.nan)
        self.z_reference = np.zeros((n_layers, n_heads, length))
        self.z_reference_rest = np.zeros((n_layers, n_heads, length))
        self.a0_reference = np.zeros((n_layers, n_heads, length))
        for layer, head in np.ndindex(n_layers, n_heads):
            for d in range(length):
                queries = sum(1 for i in range(d + 1, length) if self.visible[layer, i, i - d])
                if queries:
                    total = sum(self.weights[n] * self._sum_by_lag(n, layer, head, d) for n in range(n_sequences))
                    self.reference[layer, head, d] = total / (queries * sum(self.weights))
                else:
                    self.reference[layer, head, d] = self.reference[layer, head, d - 1]
            for i in range(length):
                everything = rest = math.exp(self.learned_sink[layer, head])
                for d in range(i + 1):
                    if self.visible[layer, i, i - d]:
                        e = math.exp(self.reference[layer, head, d])
                        everything += e
                        if i - d >= 1:
                            rest += e
                self.z_reference[layer, head, i] = everything
                self.z_reference_rest[layer, head, i] = rest
                if self.visible[layer, i, 0]:
                    self.a0_reference[layer, head, i] = math.exp(self.reference[layer, head, i]) / everything

    def _terms(self):
        self.terms = {
            name: np.full((*self.shape, len(self.offsets)), np.nan) for name in (*TERMS, "residual", "log_attention")
        }
        for n, layer, head, i in np.ndindex(*self.shape):
            z_rest = self._z_rest(n, layer, head, i)
            e0 = math.exp(self._sink_logit(n, layer, head, i)) if self.visible[layer, i, 0] else 0.0
            z = z_rest + e0
            for o, d in enumerate(self.offsets):
                j = i - d
                if j < 1 or not self.visible[layer, i, j]:
                    continue
                where = (n, layer, head, i, o)
                s = self._logit(n, layer, head, i, o)
                ref = self.reference[layer, head, d]
                sink = math.log(1 - e0 / z) - math.log(1 - self.a0_reference[layer, head, i])
                logit_drift = s - ref
                denominator_drift = -math.log(z_rest) + math.log(self.z_reference_rest[layer, head, i])
                self.terms["relative"][where] = ref
                self.terms["mask"][where] = -math.log(self.z_reference[layer, head, i])
                self.terms["sink"][where] = sink
                self.terms["logit_drift"][where] = logit_drift
                self.terms["denominator_drift"][where] = denominator_drift
                self.terms["residual"][where] = sink + logit_drift + denominator_drift
                self.terms["log_attention"][where] = math.log(math.exp(s) / z)

    def default_queries(self):
        """max offset < i < T - 1."""
        return list(range(max(self.offsets) + 1, self.length - 1))

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

    def shares(self, queries=None):
        """Share of every term and of the residual, name -> (layer, head)."""
        leakage = self.leakage(queries)
        return {name: self.cross(name, "log_attention", queries) / leakage for name in (*TERMS, "residual")}

    def pooled_shares(self, queries=None):
        """Share of every term and of the residual over all heads and layers: ratio of sums, name -> float."""
        leakage = self.leakage(queries).sum()
        return {name: self.cross(name, "log_attention", queries).sum() / leakage for name in (*TERMS, "residual")}

    def magnitude(self, term, queries):
        """Pair product of the term's departure from its mean over i >= T / 2, mean over queries and offsets."""
        n_sequences, n_layers, n_heads, _ = self.shape
        queries = list(queries)
        out = np.full((n_layers, n_heads), np.nan)
        for layer, head in np.ndindex(n_layers, n_heads):
            products = []
            for o in self.existing_offsets(queries, layer):
                late = [i for i in range(self.length) if i >= self.length / 2]
                values = self.terms[term][:, layer, head, :, o]
                departure = np.empty((n_sequences, len(queries)))
                for n in range(n_sequences):
                    existing = [values[n, i] for i in late if not math.isnan(values[n, i])]
                    departure[n] = values[n, queries] - sum(existing) / len(existing)
                products.append(self._pair_mean(departure, departure))
            if products:
                out[layer, head] = np.mean(products)
        return out


class BruteDump(Brute):
    """The same from the recorded variables of a dump (an xarray.Dataset in the dump schema), one condition of it."""

    def __init__(self, dataset, condition="baseline", weights=None):
        one = dataset.sel(condition=condition)
        dims = ("sequence", "layer", "head")
        self.recorded = {
            "logit": one.logit.transpose(*dims, "query", "offset").values.astype(np.float64),
            "sink_logit": one.sink_logit.transpose(*dims, "query").values.astype(np.float64),
            "rest": one.log_denominator_rest.transpose(*dims, "query").values.astype(np.float64),
            "sums": one.logit_sum_by_lag.transpose(*dims, "lag").values.astype(np.float64),
        }
        self.shape = self.recorded["rest"].shape
        visible = np.zeros((self.shape[1], self.shape[3], self.shape[3]), dtype=bool)
        for layer, i in np.ndindex(self.shape[1], self.shape[3]):
            visible[layer, i, i + 1 - int(one.visible_keys.values[layer, i]) : i + 1] = True
        self._prepare(
            one.document.values.tolist(), one.offset.values.tolist(), visible, one.learned_sink.values, weights
        )

    def _sum_by_lag(self, n, layer, head, d):
        return self.recorded["sums"][n, layer, head, d]

    def _z_rest(self, n, layer, head, i):
        return math.exp(self.recorded["rest"][n, layer, head, i])

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
        `ANALYSED_VARIABLES` in the dump schema, float64.
    """
    first = next(iter(conditions.values()))
    shaped = Brute(first, documents, offsets, visible, learned_sink)
    n_sequences, n_layers, n_heads, length = shaped.shape
    visible, learned_sink = shaped.visible, shaped.learned_sink
    block = (len(conditions), n_sequences, n_layers, n_heads)
    data = {
        "logit": np.full((*block, length, len(shaped.offsets)), np.nan),
        "sink_logit": np.full((*block, length), np.nan),
        "log_denominator_rest": np.full((*block, length), -np.inf),
        "logit_sum_by_lag": np.zeros((*block, length)),
        "learned_sink": np.array(learned_sink),
        "visible_keys": visible.sum(axis=2),
    }
    for c, logits in enumerate(conditions.values()):
        logits = np.asarray(logits, dtype=np.float64).reshape(shaped.logits.shape)
        for n, layer, head, i in np.ndindex(n_sequences, n_layers, n_heads, length):
            s = logits[n, layer, head, i]
            where = (c, n, layer, head)
            if visible[layer, i, 0]:
                data["sink_logit"][(*where, i)] = s[0]
            rest = [s[j] for j in range(1, i + 1) if visible[layer, i, j]]
            z_rest = sum(math.exp(value) for value in rest) + math.exp(learned_sink[layer, head])
            if z_rest > 0:
                data["log_denominator_rest"][(*where, i)] = math.log(z_rest)
            for d in range(i):
                if visible[layer, i, i - d]:
                    data["logit_sum_by_lag"][(*where, d)] += s[i - d]
            for o, d in enumerate(shaped.offsets):
                if i - d >= 1 and visible[layer, i, i - d]:
                    data["logit"][(*where, i, o)] = s[i - d]
    values = {
        "condition": list(conditions),
        "sequence": np.arange(n_sequences),
        "document": shaped.documents,
        "layer": np.arange(n_layers),
        "head": np.arange(n_heads),
        "query": np.arange(length),
        "offset": shaped.offsets,
        "lag": np.arange(length),
    }
    return xr.Dataset(
        {
            name: (
                VARIABLES[name].dims,
                data[name],
                {"units": VARIABLES[name].units, "long_name": VARIABLES[name].long_name},
            )
            for name in ANALYSED_VARIABLES
        },
        coords={
            name: (COORDINATES[name][0], value, {"units": COORDINATES[name][1], "long_name": COORDINATES[name][2]})
            for name, value in values.items()
        },
        attrs={"schema_version": SCHEMA_VERSION, "model": "explicit logits"},
    )
