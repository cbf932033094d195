"""From heads to the model: the mean share or slope over heads, with heads and layers as random effects."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import choice
from posstats.dataset.blocks import Block, by_layer, field_blocks
from posstats.dataset.parameters import explained
from posstats.errors import DesignError, NumericalError
from posstats.estimators.rows import conditions, prepare
from posstats.execution.parallel import side_by_side
from posstats.results.comparison import ModelLevelResult, ModelSlopeResult
from posstats.stats.inference.mixed import fit_mixed
from posstats.stats.inference.multiplicity import adjust as adjust_p
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import corrected_error, document_pairs, jackknife_error, leave_out_weights
from posstats.stats.inference.sign_flips import SignFlips, random_signs, sign_flip_test
from posstats.stats.pair_products.components import (
    SHARE_COMPONENTS,
    LayerField,
    analysed_queries,
    by_row,
    share_parts,
    share_statistics,
)
from posstats.stats.pair_products.evaluate import evaluate, mean_terms
from posstats.stats.pair_products.terms import Array, check_order
from posstats.vocabulary import LOG_ATTENTION, RESIDUAL, TERMS

#: What is asked of every head.
MEASURES = ("share", "slope")
#: Terms a measure exists for; `relative` has neither share nor slope, by construction.
_TERMS = {
    "share": (*TERMS[1:], RESIDUAL),
    "slope": (LOG_ATTENTION, *TERMS[1:], RESIDUAL),
}
_FEWEST_LAYERS = 3


@explained
def model_level(
    data: xr.Dataset,
    *,
    term: str = RESIDUAL,
    measure: str = "share",
    order: str = "shapley",
    offsets: Sequence[int] | None = None,
    level: float = 0.95,
    n_permutations: int = 9999,
    seed: int = 0,
    adjust: str = "bh",
) -> ModelLevelResult:
    """Ask about the model, not one head: the mean share or slope of a term over heads and layers.

    ``y[head] = mean + u[layer] + e[head] + sampling error``, by restricted maximum likelihood: heads of a layer
    resemble each other, and all heads were measured on the same documents. The interval of the mean covers other
    documents, heads and layers; a pooled share (:func:`posstats.shares`) covers other documents only, and weighs heads
    by their leakage.

    Parameters
    ----------
    %(data)s
    term : str
        A term of log attention or `residual`; for slopes `log_attention` too.
    measure : {"share", "slope"}
        The share of leakage (unitless), or the slope on log2(i + 1) in nats per doubling.
    %(order)s
    %(offsets)s
    %(level)s
    %(n_permutations)s
    %(seed)s
    %(adjust)s
        The family is the leakage tests of all heads of one condition.

    Returns
    -------
    ModelLevelResult
        With the heads' own estimates in `heads`. A head whose leakage is not significant has no share; it is left out
        and counted, and the statement is about the others. :class:`~posstats.results.comparison.ModelSlopeResult` for
        slopes.

    Raises
    ------
    InputError
        For an option that is not allowed.
    DesignError
        With fewer than 5 documents, fewer than 3 layers, or too few analysed queries.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Notes
    -----
    Sampling errors are those of :func:`posstats.shares` and :func:`posstats.position_tests`, over documents. They enter
    as one variance and two covariances, within and between layers, each a mean over heads. Two things go wrong
    otherwise. Weighing heads by their own precision pulls the mean towards those that are known best, and these are not
    a random part of the model: heads whose terms cancel leak little and have uncertain shares. And with fewer documents
    than heads the jackknife covariance is singular: combinations of heads that it believes to be free of error would
    draw the mean, and the standard deviation of heads would take in the error it misses.

    Examples
    --------
    >>> import posstats as ps
    >>> from posstats.estimators.model_level import model_level
    >>> result = model_level(ps.simulate(n=30, layers=4, length=48, seed=0).dataset, term="mask")
    >>> row = result.table.iloc[0]
    >>> bool(row.low < row.estimate < row.high), int(row.n_heads + row.n_excluded)
    (True, 16)
    """
    inference = Inference(level, n_permutations=n_permutations, adjust=adjust, seed=seed)
    measure = choice("measure", measure, MEASURES)
    term = choice(f"term of a {measure}", term, _TERMS[measure])
    last = check_order(order)
    terms, notes, settings = prepare(data, offsets, inference)
    if terms.sizes["layer"] < _FEWEST_LAYERS:
        raise DesignError(f"{terms.sizes['layer']} layer(s) cannot show how layers vary; at least 3 are needed.")
    queries = analysed_queries(terms.sizes["query"], terms.offset.values)
    signs = random_signs(int(str(settings["n_documents"])), inference.n_permutations, inference.seed)
    rows, heads = [], []
    for name, one in conditions(terms):
        if measure == "share":
            measured = _shares(one, queries, share_parts(order)[term], signs)
        else:
            measured = _slopes(one, queries, term, last)
        frames, values = zip(*measured, strict=True)
        frame = pd.concat([part.assign(head=terms["head"].values) for part in frames], ignore_index=True)
        estimates = _Estimates.join(values)
        frame["estimate"], frame["se"], frame["note"] = estimates.at_all, estimates.error(), ""
        if measure == "share":
            frame["leakage_q"] = adjust_p(frame.pop("leakage_p"), inference.adjust).q
            weak = ~(frame.leakage_q < 1 - inference.level) | ~(frame.leakage > 0)
            frame.loc[weak, ["estimate", "se"]] = np.nan
            frame.loc[weak, "note"] = "withheld: leakage is not significant"
        rows.append({"condition": name, "term": term} | _fit(frame, estimates, inference.level))
        heads.append(frame.assign(condition=name))
    columns = ("condition", "layer", "head", "estimate", "se", "leakage", "leakage_q", "note")
    by_head = pd.concat(heads, ignore_index=True)
    settings |= {"measure": measure, "order": order, "level": inference.level, "seed": inference.seed}
    settings["standard_errors"] = "mixed model of heads within layers, jackknife over documents, t(df)"
    result = ModelLevelResult if measure == "share" else ModelSlopeResult
    return result(pd.DataFrame(rows), settings, notes, by_head[[name for name in columns if name in by_head]])


@dataclass(frozen=True, slots=True)
class _Estimates:
    """Estimates of heads, and what their sampling errors are made of."""

    #: (head,): from all documents.
    at_all: Array
    #: (document, head): without each document.
    left_out: Array
    #: (pair, 2) and (pair, head): documents left out together and the estimates without them; no pairs for means, which
    #: need no correction.
    pairs: NDArray[np.int64]
    pair_left_out: Array

    @classmethod
    def join(cls, layers: Sequence["_Estimates"]) -> "_Estimates":
        at_all, left_out, pair_left_out = (
            np.concatenate([getattr(one, name) for one in layers], axis=-1)
            for name in ("at_all", "left_out", "pair_left_out")
        )
        return cls(at_all, left_out, layers[0].pairs, pair_left_out)

    def error(self, combine: Array | None = None) -> Array:
        """Standard errors of the heads, or of their linear combinations (head, combination)."""
        at_all, left_out, pair_left_out = (
            values if combine is None else values @ combine
            for values in (self.at_all, self.left_out, self.pair_left_out)
        )
        if len(self.pairs):
            return corrected_error(at_all, left_out, self.pairs, pair_left_out).se
        return jackknife_error(left_out, axis=0)

    def of(self, heads: NDArray[np.bool_]) -> "_Estimates":
        return _Estimates(self.at_all[heads], self.left_out[:, heads], self.pairs, self.pair_left_out[:, heads])


def _fit(frame: pd.DataFrame, estimates: _Estimates, level: float) -> dict[str, object]:
    """Row of the mixed model; without enough heads to fit, a row that says so."""
    used = frame.estimate.notna().to_numpy()
    layers = frame.layer.to_numpy()
    n_layers = len(set(layers[used]))
    if n_layers < _FEWEST_LAYERS:
        return _withheld(
            used, n_layers, f"heads of {n_layers} layers leak significantly, and {_FEWEST_LAYERS} are needed"
        )
    covariance = np.zeros((len(frame), len(frame)))
    covariance[np.ix_(used, used)] = _sampling_covariance(estimates.of(used), layers[used])
    try:
        fit = fit_mixed(frame.estimate, layers, sampling=covariance, sampling_df=len(estimates.left_out) - 1)
    except DesignError as error:  # the estimates do not vary; the other conditions may
        return _withheld(used, n_layers, str(error))
    low, high = fit.interval(level)
    return {
        "estimate": fit.estimate[0],
        "se": fit.se[0],
        "low": low[0],
        "high": high[0],
        "p": fit.p[0],
        "df": fit.df,
        "layer_sd": fit.layer_variance**0.5,
        "head_sd": fit.head_variance**0.5,
        "n_layers": fit.n_layers,
        "n_heads": fit.n_heads,
        "n_excluded": fit.n_excluded,
        "converged": fit.converged,
        "note": "; ".join(fit.notes),
    }


def _withheld(used: NDArray[np.bool_], n_layers: int, reason: str) -> dict[str, object]:
    nothing = dict.fromkeys(("estimate", "se", "low", "high", "p", "df", "layer_sd", "head_sd"), np.nan)
    counts = {"n_layers": n_layers, "n_heads": int(used.sum()), "n_excluded": int((~used).sum())}
    return nothing | counts | {"converged": False, "note": f"withheld: {reason}"}


def _sampling_covariance(estimates: _Estimates, layers: NDArray[np.generic]) -> Array:
    """Sampling covariance of the heads, (head, head): one variance, one covariance within layers and one between.

    They are the means over heads and pairs of heads, so that the mean of equally many heads per layer has exactly its
    own standard error. Variances of sums over layers and over everything hold all the covariances.
    """
    member = (layers[:, None] == np.unique(layers)).astype(np.float64)
    own = (estimates.error() ** 2).sum()
    *by_layer, total = estimates.error(np.column_stack([member, np.ones(len(layers))])) ** 2
    within, n = np.sum(by_layer), len(layers)
    n_within = (member.sum(axis=0) ** 2).sum() - n
    covariance = np.full((n, n), (total - within) / (n**2 - n - n_within))
    covariance[layers[:, None] == layers] = (within - own) / max(n_within, 1)
    np.fill_diagonal(covariance, own / n)
    # Corrected variances need not belong to any covariance.
    values, axes = np.linalg.eigh(covariance)
    nearest: Array = (axes * np.maximum(values, 0)) @ axes.T
    return nearest


def _shares(
    terms: xr.Dataset, queries: NDArray[np.int64], parts: Array, signs: SignFlips
) -> Iterator[tuple[pd.DataFrame, _Estimates]]:
    """Per layer: leakage of the heads with its p-value; their shares."""
    blocks = field_blocks(terms, products=len(SHARE_COMPONENTS))
    measured = side_by_side(partial(_shares_of_block, queries=queries, parts=parts), blocks)
    for layer, blocks_of_layer in by_layer(measured):
        leakage, grams, estimates = zip(*blocks_of_layer, strict=True)
        p = sign_flip_test(np.concatenate(grams), signs)
        frame = pd.DataFrame({"layer": layer, "leakage": np.concatenate(leakage), "leakage_p": p})
        yield frame, _Estimates.join(estimates)


def _shares_of_block(block: Block, *, queries: NDArray[np.int64], parts: Array) -> tuple[Array, Array, _Estimates]:
    """Of the heads of a block their leakage, its products of documents, and their shares."""
    (field,) = block.fields()
    stats = share_statistics(field, queries, field.offsets)
    n_documents = len(field.sequences)
    pairs = document_pairs(n_documents)
    values = evaluate([stats], leave_out_weights(n_documents, pairs))[0]
    total = values[..., 0]
    part = (values * parts).sum(axis=-1)
    share = np.divide(part, total, out=np.full_like(total, np.nan), where=total != 0)
    whole, without_pairs = np.split(share, [n_documents + 1])
    return total[0], stats.gram[:, 0], _Estimates(whole[0], whole[1:], pairs, without_pairs)


def _slopes(
    terms: xr.Dataset, queries: NDArray[np.int64], term: str, last: float
) -> Iterator[tuple[pd.DataFrame, _Estimates]]:
    """Per layer: slopes of the heads."""
    measured = side_by_side(partial(_slopes_of_block, queries=queries, term=term, last=last), field_blocks(terms))
    for layer, blocks_of_layer in by_layer(measured):
        estimates = _Estimates.join(blocks_of_layer)
        yield pd.DataFrame({"layer": np.full(len(estimates.at_all), layer)}), estimates


def _slopes_of_block(block: Block, *, queries: NDArray[np.int64], term: str, last: float) -> _Estimates:
    (field,) = block.fields()
    values = _slopes_at(field, queries, term, leave_out_weights(len(field.sequences)), last)
    if not np.isfinite(values).all():
        raise NumericalError(f"Log attention of layer {block.layer} is not finite at an analysed query.")
    return _Estimates(values[0], values[1:], np.empty((0, 2), dtype=np.int64), np.empty((0, values.shape[1])))


def _slopes_at(field: LayerField, queries: NDArray[np.int64], term: str, weights: Array, last: float) -> Array:
    """Least-squares slopes on log2(i + 1) at document weights (replicate, document): (replicate, head)."""
    x = np.log2(queries + 1.0)
    x -= x.mean()
    return by_row(mean_terms(field, weights, last)[term][:, :, queries], x / (x @ x))
