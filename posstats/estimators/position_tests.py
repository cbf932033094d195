"""Position regression per head and term: does this head's log attention depend on the query's position?"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats as sps
from statsmodels.regression.linear_model import RegressionResultsWrapper

from posstats.arguments import choice
from posstats.dataset.blocks import Block, by_layer, field_blocks
from posstats.dataset.parameters import explained
from posstats.dataset.terms import document_codes, select_condition
from posstats.estimators.rows import adjusted, conditions, prepare
from posstats.execution.parallel import side_by_side
from posstats.results.base import PositionResult
from posstats.stats.inference.documents import leverage_note
from posstats.stats.inference.options import Inference
from posstats.stats.pair_products.components import LayerField, analysed_queries, by_row
from posstats.stats.pair_products.terms import Array, Reference
from posstats.stats.pair_products.terms import reference as build_reference
from posstats.stats.regression import Basis, PositionFit, fit_coefficients, fit_rows, position_basis
from posstats.vocabulary import LOG_ATTENTION, TERMS, Note

_TERMS = (LOG_ATTENTION, *TERMS)
#: What a slope treats the stationary reference as.
REFERENCES = ("estimated", "fixed")
#: Standard errors below this fraction of the largest coefficient of the head are rounding.
_ROUNDING = 1e-10


@explained
def position_tests(
    data: xr.Dataset,
    *,
    reference: str = "estimated",
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    adjust: str = "bh",
) -> PositionResult:
    """Regress every head's log attention, and each of its terms, on the query's position.

    ``y[n, i, d] = intercept[d] + slope * log2(i + 1) + error`` over the analysed queries, errors clustered by
    document (CR2, with Bell and McCaffrey's degrees of freedom); and the same with a natural cubic spline (3 df) in
    log2(i + 1), tested jointly (AHT). Least squares is linear in the response, so the slopes of the five terms add up
    to the slope of log attention.

    Parameters
    ----------
    %(data)s
    reference : {"estimated", "fixed"}
        Whether the standard errors of `mask`, `sink` and `denominator_drift` include that the stationary reference is
        estimated from the same documents (delete-one pseudo-values), or take it as known: "fixed" is ordinary least
        squares on the values of every term. The slopes of `log_attention` and `logit_drift` do not involve the
        reference and are the same either way.
    %(offsets)s
    %(level)s
    %(adjust)s
        The family is all heads of one condition and term.

    Returns
    -------
    PositionResult

    Raises
    ------
    InputError
        For an option that is not allowed.
    DesignError
        With fewer than 5 documents, or too few analysed queries for the spline.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents, or an effective number below 24 where they are unequally large.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.position_tests(ps.simulate(n=30, length=64, seed=0).dataset)
    >>> slopes = result.table.query("head == 0").set_index("term").estimate
    >>> bool(abs(slopes["log_attention"] - slopes.drop("log_attention").sum()) < 1e-9)
    True
    """
    inference = Inference(level, adjust=adjust)
    reference = choice("reference", reference, REFERENCES)
    terms, notes, settings = prepare(data, offsets, inference)
    queries = analysed_queries(terms.sizes["query"], terms.offset.values)
    job = partial(_fits, queries=queries, reference=reference)
    rows, carried = [], []
    for condition, one in conditions(terms):
        fitted = side_by_side(job, field_blocks(one))
        for layer, fits in by_layer(fitted):
            carried += [np.where(np.isnan(linear.p), np.nan, linear.leverage).ravel() for linear, _ in fits]
            heads = ((fit, at) for fit in fits for at in range(len(fit[0].coefficients)))
            for label, ((linear, spline), head) in zip(terms["head"].values.tolist(), heads, strict=True):
                for k, term in enumerate(_TERMS):
                    rows.append(
                        {"condition": condition, "layer": layer, "head": label, "term": term}
                        | _row(linear, spline, (head, k), inference.level)
                    )
    table = pd.DataFrame(rows)
    # `relative` is constant in the query by construction: its slope is exactly 0 and there is nothing to test.
    table.loc[table.term == "relative", ["p", "spline_p"]] = np.nan
    table = adjusted(table, ["condition", "term"], inference, {"p": "q", "spline_p": "spline_q"})
    errors = "clustered by document (CR2), t with Bell and McCaffrey's degrees of freedom"
    settings |= {"level": inference.level, "reference": reference, "standard_errors": errors}
    notes += tuple(Note(text, "inference") for text in leverage_note(np.concatenate(carried), "slopes"))
    return PositionResult(table, settings, notes, partial(_model, terms, queries, reference))


def _fits(block: Block, *, queries: np.ndarray, reference: str) -> tuple[PositionFit, PositionFit]:
    """Linear and spline fits of the heads of a block."""
    (field,) = block.fields()
    linear, spline = (_fit(field, queries, position_basis(queries, kind), reference) for kind in ("linear", "spline"))
    return linear, spline


def _fit(field: LayerField, queries: np.ndarray, basis: Basis, reference: str) -> PositionFit:
    """Coefficients per (head, term) with their clustered covariance."""
    centred = basis.values - basis.values.mean(axis=0)
    project = np.linalg.pinv(centred).T  # (query, parameter)
    n = field.sequences[:, None, None]

    def slope(sums: Array) -> Array:
        """Coefficients of each document's mean, (document, head, parameter)."""
        return by_row(sums[:, :, queries], project) / n

    share, rest, drift = slope(field.rest_share), slope(field.rest), slope(field.logit.mean(axis=-1))
    log_z, log_rest = (by_row(logs, project) for logs in _reference_logs(field, queries, reference))
    by_term = _by_term(drift, share, rest, log_z, log_rest, np.zeros_like(share))
    by_document = np.stack([by_term[term] for term in _TERMS], axis=2)
    size = np.abs(by_document).max(axis=(0, 2), keepdims=True)[0]
    return fit_coefficients(by_document, field.sequences, names=basis.names, rounding=_ROUNDING * size)


def _by_term(
    logit: Array, share: Array, rest: Array, log_z: Array, log_rest: Array, relative: Array
) -> dict[str, Array]:
    """Log attention and its terms from their parts: linear, so it serves values and their slopes alike."""
    return {
        LOG_ATTENTION: logit + share + rest,
        "relative": relative,
        "mask": np.zeros_like(share) - log_z,
        "sink": share + log_z - log_rest,
        "logit_drift": logit - relative,
        "denominator_drift": rest + log_rest,
    }


def _model(
    terms: xr.Dataset, queries: np.ndarray, reference: str, *, condition: str, layer: int, head: int, term: str
) -> RegressionResultsWrapper:
    """Regression of one term of one head on the rows of all sequences, whose documents have the reference of `_fit`."""
    one = select_condition(terms, condition).sel(layer=[layer], head=[head])
    sequences = np.arange(one.sizes["sequence"])
    codes, _ = document_codes(one)
    by_document, by_sequence = map(_only_field, (one, one.assign_coords(document=("sequence", sequences))))
    ref = _reference(by_document, by_document.lag_mean.sum(axis=0) / by_document.sequences.sum())
    logs = (
        np.broadcast_to(log, (codes.max() + 1, *log.shape[1:]))
        for log in _reference_logs(by_document, queries, reference)
    )
    log_z, log_rest = (log[codes, 0, :, None] for log in logs)
    share, rest = (part[:, 0, queries, None] for part in (by_sequence.rest_share, by_sequence.rest))
    parts = (by_sequence.logit[:, 0, queries], share, rest, log_z, log_rest, ref.logit[0, by_sequence.offsets])
    offsets = by_sequence.offsets.tolist()
    rows = pd.MultiIndex.from_product([one.sequence.values, queries, offsets], names=["sequence", "query", "offset"])
    values = np.broadcast_to(_by_term(*parts)[term], (len(sequences), len(queries), len(offsets)))
    design = {f"offset={d}": (rows.get_level_values("offset") == d).astype(float) for d in offsets}
    design["log2(i+1)"] = np.log2(rows.get_level_values("query") + 1.0)
    response = pd.Series(values.ravel(), rows, name=term)
    return fit_rows(response, pd.DataFrame(design, rows), np.repeat(codes, len(queries) * len(offsets)))


def _only_field(data: xr.Dataset) -> LayerField:
    (block,) = field_blocks(data)
    (field,) = block.fields()
    return field


def _reference(field: LayerField, lag_mean: Array) -> Reference:
    return build_reference(lag_mean, field.visible_keys, field.learned_sink)


def _reference_logs(field: LayerField, queries: np.ndarray, kind: str) -> tuple[Array, Array]:
    """``log Zref`` and ``log ZrefRest`` as each document has them, (document, head, query).

    Fixed: the same for all. Estimated: delete-one pseudo-values, ``(N f - (N - n_g) f without g) / n_g``, shifted so
    that they average to f itself; a linear function of the documents would return each document's own value.
    """
    total = field.sequences.sum()

    def logs(lag_mean: Array) -> list[Array]:
        ref = _reference(field, lag_mean)
        return [np.ascontiguousarray(one[..., queries]) for one in (ref.log_denominator, ref.log_denominator_rest)]

    full = logs(field.lag_mean.sum(axis=0) / total)
    if kind == "fixed":
        return full[0][None], full[1][None]
    n = field.sequences[:, None, None]
    seen = np.isfinite(field.lag_mean)
    sums = np.where(seen, field.lag_mean, 0.0)
    without = logs(np.where(seen, (sums.sum(axis=0) - sums) / (total - n), -np.inf))
    pseudo = [(total * f - (total - n) * f_without) / n for f, f_without in zip(full, without, strict=True)]
    first, second = (p - (n / total * p).sum(axis=0) + f for p, f in zip(pseudo, full, strict=True))
    return first, second


def _row(linear: PositionFit, spline: PositionFit, at: tuple[int, int], level: float) -> dict[str, object]:
    estimate, se = linear.coefficients[(*at, 0)], linear.standard_errors[(*at, 0)]
    half = sps.t.ppf(0.5 + level / 2, linear.df) * se
    return {
        "estimate": estimate,
        "se": se,
        "low": estimate - half,
        "high": estimate + half,
        "t": linear.t[(*at, 0)],
        "df": linear.df,
        "p": linear.p[(*at, 0)],
        "spline_f": spline.f[at],
        "spline_df1": spline.f_df[0],
        "spline_df2": spline.f_df[1],
        "spline_p": spline.f_p[at],
    }
