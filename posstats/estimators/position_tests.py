"""Position regression per head and term: does this head's log attention depend on the query's position?"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from scipy import stats as sps

from posstats.dataset.blocks import Block, by_layer, field_blocks
from posstats.dataset.terms import select_condition
from posstats.errors import InputError
from posstats.estimators.leakage import adjusted, prepare
from posstats.execution.parallel import side_by_side
from posstats.results.base import PositionResult
from posstats.stats.inference.resample import check_interval_options, leave_out_weights
from posstats.stats.pair_products.components import LayerField, analysed_queries, by_row, term_sums
from posstats.stats.pair_products.evaluate import mean_terms
from posstats.stats.pair_products.terms import Array, check_order
from posstats.stats.regression import Basis, PositionFit, fit_coefficients, position_basis
from posstats.vocabulary import LOG_ATTENTION, TERMS

_TERMS = (LOG_ATTENTION, *TERMS)
#: What a slope treats the steady state as.
REFERENCES = ("estimated", "fixed")
#: Standard errors below this fraction of the largest coefficient of the head are rounding.
_ROUNDING = 1e-10


def position_tests(
    data: xr.Dataset,
    *,
    reference: str = "estimated",
    order: str = "shapley",
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    adjust: str = "bh",
) -> PositionResult:
    """Regress every head's log attention, and each of its terms, on the query's position.

    ``y[n, i, d] = intercept[d] + slope * log2(i + 1) + error`` over the analysed queries, errors clustered by
    document; and the same with a natural cubic spline (3 df) in log2(i + 1), tested jointly. Least squares is linear
    in the response, so the slopes of the four terms add up to the slope of log attention.

    Parameters
    ----------
    data : xarray.Dataset
        Terms (:func:`posstats.decompose`) or a dump; every condition in it is tested.
    reference : {"estimated", "fixed"}
        Whether the standard errors of `mask`, `sink` and `redistribution` include that the steady state is estimated
        from the same documents (delete-one pseudo-values), or take it as known. "fixed" equals ``statsmodels`` OLS
        with clustered covariance for every term, up to the factor (n-1)/(n-K); the slope of `log_attention` does not
        involve the steady state and equals it either way.
    order : {"shapley", "mask_first", "mask_last"}
        Of mask and sink (:func:`posstats.shares`).
    offsets : sequence of int, optional
        Offsets in the regression; all of `data` if not given.
    level : float
        Level of the interval of the slope, from t(G-1).
    adjust : {"bh", "by", "holm"}
        Adjustment over the family: all heads of one condition and term.

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
        With fewer than 24 documents.

    Examples
    --------
    >>> import posstats as ps
    >>> result = ps.position_tests(ps.simulate(n=30, length=64, seed=0).dataset)
    >>> slopes = result.table.query("head == 0").set_index("term").estimate
    >>> bool(abs(slopes["log_attention"] - slopes.drop("log_attention").sum()) < 1e-9)
    True
    """
    if reference not in REFERENCES:
        raise InputError(f"reference must be one of {', '.join(REFERENCES)}, not {reference!r}.")
    check_interval_options("jackknife", level)
    last = check_order(order)
    terms, notes, settings = prepare(data, offsets, adjust)
    queries = analysed_queries(terms.sizes["query"], terms.offset.values)
    job = partial(_fits, queries=queries, reference=reference, last=last)
    rows = []
    for condition in np.atleast_1d(terms.condition.values):
        fitted = side_by_side(job, field_blocks(select_condition(terms, condition)))
        for layer, fits in by_layer(fitted):
            heads = ((fit, at) for fit in fits for at in range(len(fit[0].coefficients)))
            for label, ((linear, spline), head) in zip(terms["head"].values.tolist(), heads, strict=True):
                for k, term in enumerate(_TERMS):
                    rows.append(
                        {"condition": str(condition), "layer": layer, "head": label, "term": term}
                        | _row(linear, spline, (head, k), level)
                    )
    table = pd.DataFrame(rows)
    # `relative` is constant in the query by construction: its slope is exactly 0 and there is nothing to test.
    table.loc[table.term == "relative", ["p", "spline_p"]] = np.nan
    table = adjusted(table, ["condition", "term"], adjust, {"p": "q", "spline_p": "spline_q"})
    settings |= {
        "level": level,
        "reference": reference,
        "order": order,
        "standard_errors": "clustered by document, t(G-1)",
    }
    return PositionResult(table, settings, notes)


def _fits(block: Block, *, queries: np.ndarray, reference: str, last: float) -> tuple[PositionFit, PositionFit]:
    """Linear and spline fits of the heads of a block."""
    (field,) = block.fields()
    linear, spline = (
        _fit(field, queries, position_basis(queries, kind), reference, last) for kind in ("linear", "spline")
    )
    return linear, spline


def _fit(field: LayerField, queries: np.ndarray, basis: Basis, reference: str, last: float) -> PositionFit:
    """Coefficients per (head, term) with their clustered covariance."""
    centred = basis.values - basis.values.mean(axis=0)
    project = np.linalg.pinv(centred).T  # (query, parameter)
    by_term = _by_document(field, queries, project, reference, last)
    by_term["relative"] = np.zeros_like(by_term["mask"])
    by_document = np.stack([by_term[term] for term in _TERMS], axis=2)
    size = np.abs(by_document).max(axis=(0, 2), keepdims=True)[0]
    return fit_coefficients(by_document, field.sequences, names=basis.names, rounding=_ROUNDING * size)


def _by_document(field: LayerField, queries: np.ndarray, project: Array, kind: str, last: float) -> dict[str, Array]:
    """Coefficients of each document's terms, (document, head, parameter), averaged over the offsets.

    Fixed: the steady state is the same for all. Estimated: delete-one pseudo-values,
    ``(N b - (N - n_g) b without g) / n_g``, shifted so that they average to b itself; what is linear in the documents
    returns each document's own value.
    """
    n = field.sequences[:, None, None]
    if kind == "fixed":
        sums = term_sums(field, last)
        means = {name: values.mean(axis=-1) if values.ndim == 4 else values for name, values in sums.items()}
        return {name: by_row(values[:, :, queries], project) / n for name, values in means.items()}
    total = field.sequences.sum()
    by_term = {}
    for name, values in mean_terms(field, leave_out_weights(len(n)), last).items():
        # In one order in memory: sums over documents must not depend on how many heads there are.
        full, without = np.split(np.ascontiguousarray(values[:, :, queries]), [1])
        pseudo = (total * full - (total - n) * without) / n
        by_term[name] = by_row(pseudo - (n / total * pseudo).sum(axis=0) + full, project)
    return by_term


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
