"""Synthetic dumps with all that a dump holds of position 0, and the same estimators once more as plain loops."""

import itertools

import numpy as np

import posstats as ps
from posstats.stats.sinks import selecting
from tests.sealed import sealed


def synthetic(n=24, length=80, layers=2, heads=3, tokens=2, sequences_per_document=1, seed=0, window=None):
    """Conditions without any effect; heads 0 read position 0, and first tokens have trajectories of their own."""
    conditions = ["baseline", f"bos=tokens:{tokens}", "bos=token:7", "trajectory=token:7@1", "bos@4"]
    ds = ps.simulate(
        n=n, length=length, layers=layers, heads=heads, offsets=(0, 1, 2), conditions=conditions, seed=seed,
        sequences_per_document=sequences_per_document, strength=0, window=window,
    ).dataset.copy(deep=True)  # fmt: skip
    rng = np.random.default_rng(seed)
    block = ("condition", "sequence", "layer", "head")
    shape = tuple(ds.sizes[dim] for dim in block)
    ds["sink_logit"] = ds.sink_logit + rng.normal(size=shape)[..., None] + 6 * (ds["head"] == 0)
    ds.attrs["dtype"] = "float32"
    for name in ("sink_value_norm", "value_norm", "anchor_attention", "anchor_sink_attention"):
        ds[name] = (block, rng.uniform(0.2, 0.9, size=shape))
    ds["head_output"] = ((*block, "channel"), rng.normal(size=(*shape, 4)))
    ds["trajectory_departure"] = (("condition", "sequence", "depth"), 1e-6 * rng.uniform(size=(*shape[:2], layers + 1)))
    documents = np.unique(ds.document.values, return_inverse=True)[1]
    first = np.zeros(shape[:2], dtype=np.int64)
    first[1] = 10 + documents % tokens
    ds["token_id"].values[:, :, 0] = first
    # Sequences with one first token share the embedding and differ a little from then on.
    walk = rng.normal(size=(10 + tokens, *ds.trajectory.shape[2:]))
    ds["trajectory"].values[:] = walk[first] + 1e-7 * rng.normal(size=ds.trajectory.shape)
    ds["trajectory"].values[:, :, 0] = walk[first][:, :, 0]
    return sealed(ds)


def attention(ds, condition, sequence, layer, head):
    """Mean attention on position 0 over i >= 16, one number."""
    at = (ds.condition.values.tolist().index(condition), sequence, layer, head)
    sink, rest = ds.sink_logit.values[at], ds.log_denominator_rest.values[at]
    visible = ds.visible_keys.values[layer]
    found = []
    for i in range(16, len(sink)):
        found.append(np.exp(sink[i]) / (np.exp(sink[i]) + np.exp(rest[i])) if visible[i] > i else 0.0)
    return np.mean(found)


def displacement(terms, condition, baseline, layer, head, queries):
    """Displacement of one head from the residual terms of whole datasets, a loop over pairs of sequences."""

    def residual(name):
        one = terms.sel(condition=name, layer=layer, head=head).isel(query=queries)
        total = one.sink + one.redistribution
        return total.transpose("sequence", "query", "offset").values

    u = residual(condition) - residual(baseline)
    documents = terms.document.values
    pairs = [(n, m) for n, m in itertools.permutations(range(len(u)), 2) if documents[n] != documents[m]]
    return np.mean([np.mean(u[n] * u[m]) for n, m in pairs])


def selecting_sequences(ds, seed=0):
    """Sequences of the documents that select heads."""
    documents = np.unique(ds.document.values, return_inverse=True)[1]
    return selecting(documents.max() + 1, seed)[documents]
