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
from posstats.dataset.terms import decompose, document_codes
from posstats.estimators.rows import adjusted, conditions, prepare
from posstats.execution.parallel import side_by_side
from posstats.results.base import PositionResult
from posstats.stats.inference.documents import leverage_note
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import leave_out_weights
from posstats.stats.pair_products.components import LayerField, analysed_queries, by_row, term_sums
from posstats.stats.pair_products.evaluate import mean_terms
from posstats.stats.pair_products.terms import Array, check_order
from posstats.stats.regression import Basis, PositionFit, fit_coefficients, fit_rows, position_basis
from posstats.vocabulary import LOG_ATTENTION, TERMS, Note

_TERMS = (LOG_ATTENTION, *TERMS)
#: What a slope treats the steady state as.
REFERENCES = ("estimated", "fixed")
#: Standard errors below this fraction of the largest coefficient of the head are rounding.
_ROUNDING = 1e-10


@explained
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
    document (CR2, with Bell and McCaffrey's degrees of freedom); and the same with a natural cubic spline (3 df) in
    log2(i + 1), tested jointly (AHT). Least squares is linear in the response, so the slopes of the four terms add up
    to the slope of log attention.

    Parameters
    ----------
    %(data)s
    reference : {"estimated", "fixed"}
        Whether the standard errors of `mask`, `sink` and `redistribution` include that the steady state is estimated
        from the same documents (delete-one pseudo-values), or take it as known: "fixed" is ordinary least squares on
        the values of every term. The slope of `log_attention` does not involve the steady state and is the same either
        way.
    %(order)s
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
    last = check_order(order)
    terms, notes, settings = prepare(data, offsets, inference)
    queries = analysed_queries(terms.sizes["query"], terms.offset.values)
    job = partial(_fits, queries=queries, reference=reference, last=last)
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
    settings |= {"level": inference.level, "reference": reference, "order": order, "standard_errors": errors}
    notes += tuple(Note(text, "inference") for text in leverage_note(np.concatenate(carried), "slopes"))
    return PositionResult(table, settings, notes, partial(_model, terms, queries, reference, order))


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
    means = _document_means(field, queries, reference, last)
    by_term = {name: by_row(values, project) for name, values in means.items()}
    by_term["relative"] = np.zeros_like(by_term["mask"])
    by_document = np.stack([by_term[term] for term in _TERMS], axis=2)
    size = np.abs(by_document).max(axis=(0, 2), keepdims=True)[0]
    return fit_coefficients(by_document, field.sequences, names=basis.names, rounding=_ROUNDING * size)


def _model(
    terms: xr.Dataset,
    queries: np.ndarray,
    reference: str,
    order: str,
    *,
    condition: str,
    layer: int,
    head: int,
    term: str,
) -> RegressionResultsWrapper:
    """Regression of one term of one head on the rows of all sequences, the steady state as in `_fit`."""
    one = terms.sel(condition=[condition], layer=[layer], head=[head])
    split = decompose(one, order=order)[term].isel(condition=0, layer=0, head=0, query=queries)
    ((_, alone),) = conditions(one)
    (block,) = field_blocks(alone)
    (field,) = block.fields()
    last, (codes, _) = check_order(order), document_codes(one)
    own, means = (_document_means(field, queries, kind, last) for kind in ("fixed", reference))
    moved = (means[term] - own[term])[codes, 0] if term in own else np.zeros((len(codes), len(queries)))
    offsets = one.offset.values.tolist()
    rows = pd.MultiIndex.from_product([one.sequence.values, queries, offsets], names=["sequence", "query", "offset"])
    values = split.broadcast_like(alone.logit.isel(layer=0, head=0, query=queries)).transpose(*rows.names).values
    design = {f"offset={d}": (rows.get_level_values("offset") == d).astype(float) for d in offsets}
    design["log2(i+1)"] = np.log2(rows.get_level_values("query") + 1.0)
    response = pd.Series((values + moved[..., None]).ravel(), rows, name=term)
    return fit_rows(response, pd.DataFrame(design, rows), np.repeat(codes, len(queries) * len(offsets)))


def _document_means(field: LayerField, queries: np.ndarray, kind: str, last: float) -> dict[str, Array]:
    """Means of each document's terms, (document, head, query), averaged over the offsets.

    Fixed: the steady state is the same for all. Estimated: delete-one pseudo-values,
    ``(N b - (N - n_g) b without g) / n_g``, shifted so that they average to b itself; what is linear in the documents
    returns each document's own value.
    """
    n = field.sequences[:, None, None]
    if kind == "fixed":
        sums = term_sums(field, last)
        means = {name: values.mean(axis=-1) if values.ndim == 4 else values for name, values in sums.items()}
        return {name: values[:, :, queries] / n for name, values in means.items()}
    total = field.sequences.sum()
    by_term = {}
    for name, values in mean_terms(field, leave_out_weights(len(n)), last).items():
        # In one order in memory: sums over documents must not depend on how many heads there are.
        full, without = np.split(np.ascontiguousarray(values[:, :, queries]), [1])
        pseudo = (total * full - (total - n) * without) / n
        by_term[name] = pseudo - (n / total * pseudo).sum(axis=0) + full
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
