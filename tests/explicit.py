"""What a layer records, from its whole query-by-key matrix, in plain loops and float64: independent of the recorder."""

import numpy as np

FAR = 16


def explicit_statistics(logits, visible, value, offsets, *, learned=None, anchor=None):
    """Statistics of one layer by their definitions.

    Parameters
    ----------
    logits : ndarray, (batch, head, query, key)
        Scaled, soft-capped; what is not visible does not matter.
    visible : ndarray of bool, (query, key)
        The mask.
    value : ndarray, (batch, head, key, channel)
        Values, repeated for the heads that share them.
    offsets : sequence of int
    learned : ndarray, (head,), optional
        Learned sink logits.
    anchor : int, optional

    Returns
    -------
    dict of str to ndarray
    """
    batch, heads, length, _ = logits.shape
    half, quarter = length // 2, length // 4
    hidden = np.where(visible, logits, -np.inf)
    sink = (
        np.full((batch, heads, length, 1), -np.inf)
        if learned is None
        else np.broadcast_to(learned[:, None, None], (batch, heads, length, 1))
    )
    largest = np.maximum(hidden.max(-1, keepdims=True), sink)
    weights = np.exp(hidden - largest)
    weights /= weights.sum(-1, keepdims=True) + np.exp(sink - largest)
    rows = [(n, h) for n in range(batch) for h in range(heads)]
    found = {"weights": weights, "output": weights @ value}

    found["sink_logit"] = np.where(visible[:half, 0], logits[:, :, :half, 0], np.nan)
    with np.errstate(divide="ignore"):
        found["log_denominator_rest"] = np.log(np.exp(hidden[:, :, :half, 1:]).sum(-1))
    logit = np.full((batch, heads, half, len(offsets)), np.nan)
    for i in range(half):
        for column, d in enumerate(offsets):
            if i - d >= 1 and visible[i, i - d]:
                logit[:, :, i, column] = logits[:, :, i, i - d]
    found["logit"] = logit

    reference = evenly(quarter, 64, length)
    steady, sums = (np.full((batch, heads, half), np.nan) for _ in range(2))
    for d in range(half):
        seen = [r for r in reference if visible[r, r - d]]
        if seen:
            steady[..., d] = np.mean([logits[:, :, r, r - d] for r in seen], axis=0)
            parts = [np.exp(logits[:, :, r, r - d : r + 1]).sum(-1) for r in seen]
            sums[..., d] = np.log(parts).mean(axis=0)
    found["steady_logit"], found["steady_log_sum"] = steady, sums
    found["steady_square"] = steady_square(logits, visible, reference)

    received = np.full((batch, heads, half), np.nan)
    for j in range(half):
        seen = [i for i in evenly(length - quarter, 32, length) if i >= j + FAR and visible[i, j]]
        if seen:
            received[..., j] = np.mean([weights[:, :, i, j] for i in seen], axis=0)
    found["attention_received"] = received

    query, key = np.nonzero(visible)
    for name, columns in (("offset", [query - key]), ("position", [query, key])):
        design = np.column_stack([np.ones(len(query)), *columns])
        r2 = np.full((batch, heads), np.nan)
        for n, h in rows:
            y = logits[n, h, query, key]
            left = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
            if np.ptp(query - key) > 0:
                r2[n, h] = 1 - (left**2).sum() / ((y - y.mean()) ** 2).sum()
        found[f"linear_r2_{name}"] = r2

    from_sink = np.linalg.norm(weights[..., :1] * value[:, :, :1], axis=-1)
    from_rest = np.linalg.norm(weights[..., 1:] @ value[:, :, 1:], axis=-1)
    norms = np.linalg.norm(value, axis=-1)
    found["sink_output_fraction"] = mean((from_sink / (from_sink + from_rest))[..., FAR:], -1)
    found["sink_value_norm"], found["value_norm"] = norms[..., 0], norms[..., 1:].mean(-1)
    found["head_output"] = mean(found["output"][:, :, FAR:], -2)
    behind = slice(length if anchor is None else anchor + FAR, None)
    found["anchor_attention"] = mean(weights[:, :, behind, anchor or 0], -1)
    found["anchor_sink_attention"] = mean(weights[:, :, behind, 0], -1)
    return found


def steady_square(logits, visible, reference):
    """Mean over lags, and queries that see the key, of squared log attention among the keys of the steady state."""
    half, by_lag = logits.shape[-1] // 2, []
    for d in range(half):
        squares = []
        for r in reference:
            keys = [r - lag for lag in range(half) if visible[r, r - lag]]
            if r - d in keys:
                squares.append((logits[:, :, r, r - d] - np.log(np.exp(logits[:, :, r, keys]).sum(-1))) ** 2)
        by_lag += [np.mean(squares, axis=0)] if squares else []
    return np.mean(by_lag, axis=0)


def evenly(span, most, length):
    """At most so many positions, equally far apart, of the last `span`, the very last among them."""
    count = min(span, most)
    return sorted(length - 1 - n * (span // count) for n in range(count))


def mean(values, axis):
    """Mean; NaN of nothing."""
    if values.shape[axis] == 0:
        return np.full(values.sum(axis).shape, np.nan)
    return values.mean(axis)
