"""Decoding position from what a layer's attention computes (docs/method.md, section 5): the labelled face."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr
from scipy.special import expit, logit
from scipy.stats import t

from posstats.arguments import choice, whole_number
from posstats.dataset.blocks import Block, read
from posstats.dataset.door import check_depths, chosen, whole_dump
from posstats.dataset.parameters import explained
from posstats.dataset.terms import check_offsets_visible, document_codes, document_settings, few_documents
from posstats.errors import DesignError, InputError
from posstats.estimators.rows import ROUNDING, adjusted, conditions
from posstats.execution.parallel import side_by_side
from posstats.results.decoding import DecodingResult, DiscriminationResult
from posstats.stats.decoding import scores as kernels
from posstats.stats.decoding.ridge import FEWEST_FOLDS, MOST_FOLDS
from posstats.stats.decoding.scores import FEATURE_SETS, Discriminability, Parts
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import interval
from posstats.stats.pair_products.components import analysed_queries
from posstats.stats.pair_products.terms import Array

#: What stands for the residual stream.
FEATURES = ("logits", "offset_logits", "stream")
_NEEDED = ("logit", "sink_logit", "log_denominator_rest", "visible_keys")
_NO_SINK = "sink logit left out: position 0 lies outside the window"


@explained
def decode(
    data: xr.Dataset,
    *,
    features: str = "logits",
    layers: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    n_folds: int = 5,
    level: float = 0.95,
    seed: int = 0,
    adjust: str = "bh",
) -> DecodingResult:
    """Decode the query's position from each layer's denominators and residual-stream features.

    Ridge regression of ``log2(i + 1)``, cross-validated by document, on (a) ``log Z[i]`` of every head and (b) the
    residual-stream features; ``R2(a)``, ``R2(b)``, ``R2(a, b)``, and their unique, common and Shapley parts, such as
    ``shapley_denominator = (R2(a) + R2(a, b) - R2(b)) / 2``. The analysed queries are ``max offset < i < T - 1``.

    Parameters
    ----------
    %(dump)s
    features : {"logits", "offset_logits", "stream"}
        Residual-stream features: the sink logit and the offset logits of every head (a layer whose window hides
        position 0 from an analysed query goes without the sink logit, and the table says so); the offset logits alone;
        or the residual stream that the layer reads, ``residual_sample`` at depth = layer, with the queries restricted
        to its probes. The cost of the stream grows with documents times hidden cubed.
    %(layers)s
    %(offsets)s
        Here the logits at these offsets are features.
    %(n_folds)s
        All layers and conditions share the folds.
    %(level)s
        Intervals are t(G-1) times the jackknife standard error, every model refitted without each document.
    %(seed)s
    %(adjust)s
        The family is all layers of one condition and part.

    Returns
    -------
    DecodingResult

    Raises
    ------
    InputError
        For an option that is not allowed, terms instead of a dump, or a dump without ``residual_sample``.
    DesignError
        With fewer than 5 documents or fewer documents than folds, or too few analysed queries or probes.
    NumericalError
        If a feature is not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Notes
    -----
    R-squared is cross-validated, so it is negative where the features know nothing and ``both`` can fall below either
    group. It is a score at this number of documents: more documents train better models.

    The sink logit ``s[i, 0]`` is the logit at offset i: it tells the position even where logits depend on the offset
    alone, and so "logits" do not score 0 on such data. "offset_logits" do.

    References
    ----------
    Lindeman, Merenda & Gold (1980), "Introduction to Bivariate and Multivariate Analysis", for the allocation.

    Examples
    --------
    >>> import posstats as ps
    >>> from posstats.estimators.decoding import decode
    >>> result = decode(ps.simulate(n=30, length=48, seed=0).dataset)
    >>> row = result.table.set_index("part").loc["both"]
    >>> bool(row.low > 0), bool(row.low < row.estimate < row.high)
    (True, True)
    """
    n_folds = whole_number("n_folds", n_folds, FEWEST_FOLDS, MOST_FOLDS)
    design = _Design.of(data, features, layers, offsets, Inference(level, adjust=adjust, seed=seed))
    queries = design.queries()
    if len(queries) < 2:
        raise DesignError(
            f"Decoding needs at least 2 analysed queries, max offset < i < T - 1, and {len(queries)} of the probes "
            f"{data.probe.values.tolist()} are. Dump more probes or choose smaller offsets=."
        )

    table = pd.DataFrame(design.rows(queries, partial(_decoded, n_folds=n_folds, seed=design.inference.seed)))
    table = adjusted(table, ["condition", "part"], design.inference, {"p": "q"})
    settings = design.settings | {"n_queries": len(queries), "n_folds": n_folds}
    return DecodingResult(_ordered(table), settings, design.notes)


@explained
def discriminate(
    data: xr.Dataset,
    first: int,
    second: int,
    *,
    features: str = "logits",
    layers: Sequence[int] | None = None,
    offsets: Sequence[int] | None = None,
    n_folds: int = 5,
    level: float = 0.95,
    seed: int = 0,
    adjust: str = "bh",
) -> DiscriminationResult:
    """Ask whether a layer's attention can tell position `first` from position `second`.

    The area under the ROC curve of a linear score (ridge regression of the label, cross-validated by document): the
    chance that a query at `second` scores higher than one at `first` in another document. By the denominators, by the
    residual-stream features, by both; and the parts of what lies above one half.

    Parameters
    ----------
    %(dump)s
    first, second : int
        Query positions, ``max offset < first < second < T - 1``; probes if `features` is "stream".
    features : {"logits", "offset_logits", "stream"}
        As in :func:`decode`.
    %(layers)s
    %(offsets)s
        Here the logits at these offsets are features.
    %(n_folds)s
        A fold needs two documents, so there must be at least ``2 * n_folds``.
    %(level)s
    %(seed)s
    %(adjust)s
        The family is all layers of one condition and part.

    Returns
    -------
    DiscriminationResult
        Intervals of an AUC are taken on the logit scale, p tests ``AUC - 1/2`` on its own. An AUC of exactly 1 is a
        ceiling that no resampling sees beyond: its lower limit is the exact binomial one over the disjoint pairs of
        documents, p is that of as many successes in a row, the parts made from it carry no interval, and `note` says
        so. An AUC of 0 likewise.

    Raises
    ------
    InputError
        As :func:`decode`, or if a position cannot be analysed.
    DesignError
        With fewer than 5 documents or fewer than two per fold.
    NumericalError
        If a feature is not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    References
    ----------
    Pepe (2003), "The Statistical Evaluation of Medical Tests for Classification and Prediction", chapter 5, for the
    logit scale.

    Examples
    --------
    >>> import posstats as ps
    >>> from posstats.estimators.decoding import discriminate
    >>> result = discriminate(ps.simulate(n=30, length=64, seed=0).dataset, 10, 50)
    >>> bool(result.table.set_index("part").low["denominator"] > 0.5)  # the denominator counts the keys
    True
    """
    first, second = whole_number("first", first), whole_number("second", second)
    n_folds = whole_number("n_folds", n_folds, FEWEST_FOLDS, MOST_FOLDS)
    design = _Design.of(data, features, layers, offsets, Inference(level, adjust=adjust, seed=seed))
    allowed = design.queries()
    if not first < second or not {first, second} <= set(allowed.tolist()):
        raise InputError(
            f"Positions {first} and {second} cannot be compared: choose first < second among "
            f"{_enumerate(allowed)} (max offset < i < T - 1{', probes only' if features == 'stream' else ''})."
        )

    told_apart = partial(_told_apart, n_folds=n_folds, seed=design.inference.seed)
    table = pd.DataFrame(design.rows(np.array([first, second]), told_apart))
    table = adjusted(table, ["condition", "part"], design.inference, {"p": "q"})
    settings = design.settings | {"first": first, "second": second, "n_folds": n_folds}
    return DiscriminationResult(_ordered(table), settings, design.notes)


@dataclass(frozen=True, slots=True)
class _Scores:
    """Scores above chance, the same without each document, and what an AUC at its ceiling is judged by."""

    parts: Parts
    left_out: Parts
    auc: Discriminability | None = None


@dataclass(frozen=True, slots=True)
class _Design:
    """The validated question: which layers and offsets of which dump, and what every result says about it."""

    data: xr.Dataset
    features: str
    inference: Inference
    settings: dict[str, object]
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        data: object,
        features: object,
        layers: object,
        offsets: object,
        inference: Inference,
    ) -> "_Design":
        features = choice("features", features, FEATURES)
        data = whole_dump(data, what="Decoding reads a dump")
        if features == "stream":
            data = whole_dump(data, ("residual_sample",), "The stream is sampled where a dump has probes=[...]")
            check_depths(data)
        data = chosen(chosen(data, "offset", offsets), "layer", layers)
        check_offsets_visible(data)
        codes, _ = document_codes(data)
        notes = few_documents(codes)
        settings = document_settings(codes) | {
            "offsets": tuple(data.offset.values.tolist()),
            "features": features,
            "adjustment": inference.adjust,
            "level": inference.level,
            "seed": inference.seed,
            "standard_errors": "jackknife over documents with refitted models, t(G-1)",
        }
        return cls(data, features, inference, settings, notes)

    def queries(self) -> np.ndarray:
        """Analysed queries; of the stream, those among the probes."""
        queries = analysed_queries(self.data.sizes["query"], self.data.offset.values)
        return queries[np.isin(queries, self.data.probe.values)] if self.features == "stream" else queries

    def rows(self, queries: np.ndarray, score: Callable[..., tuple[_Scores, str]]) -> Iterator[dict[str, object]]:
        """Rows of the table, the arrays of a few layers in memory at a time."""
        needed = [*_NEEDED, *(["residual_sample"] if self.features == "stream" else [])]
        blocks = (  # whole layers: all heads are features of one model
            Block(label, slice(None), True, (one[needed].sel(layer=label),))
            for _, one in conditions(self.data)
            for label in self.data.layer.values.tolist()
        )
        for block, (scores, note) in side_by_side(partial(score, queries=queries, features=self.features), blocks):
            for row in _estimates(scores, self.inference.level):
                row["note"] = "; ".join(text for text in (str(row["note"]), note) if text)
                yield {"condition": str(block.parts[0].condition.values), "layer": block.layer, **row}


def _features(layer: xr.Dataset, queries: np.ndarray, features: str) -> tuple[Array, Array, str]:
    """Denominator and residual features of one layer, (sequence, query, feature), and a note."""
    at = read(layer[list(_NEEDED)].isel(query=queries))
    per_query = ("sequence", "query", "head")
    # In one order in memory, whatever chunks they come from: it decides the last digit of a product.
    rest = at.log_denominator_rest.transpose(*per_query).values.astype(np.float64, order="C")
    sink = at.sink_logit.transpose(*per_query).values.astype(np.float64, order="C")
    hidden_sink = at.visible_keys.values <= queries
    # Where the window hides position 0 it adds nothing to the denominator. NaN anywhere else is a broken dump, and
    # stays NaN for the kernel to refuse.
    seen = np.where(hidden_sink[:, None] & np.isnan(sink), -np.inf, sink)
    with np.errstate(invalid="ignore"):
        denominator = np.logaddexp(rest, seen)
    if features == "stream":
        stream = read(layer.residual_sample.sel(depth=int(layer.layer), probe=queries))
        return denominator, stream.transpose("sequence", "probe", "hidden").values.astype(np.float64, order="C"), ""
    by_offset = at.logit.transpose(*per_query, "offset").values.astype(np.float64, order="C")
    by_offset = by_offset.reshape(*by_offset.shape[:2], -1)
    if features == "offset_logits" or hidden_sink.any():
        return denominator, by_offset, _NO_SINK if features == "logits" else ""
    return denominator, np.concatenate([sink, by_offset], axis=2), ""


def _decoded(block: Block, *, queries: np.ndarray, features: str, n_folds: int, seed: int) -> tuple[_Scores, str]:
    denominator, residual, note = _features(block.parts[0], queries, features)
    documents = block.parts[0].document.values
    found = kernels.decode(denominator, residual, queries, documents, n_folds=n_folds, seed=seed)
    return _Scores(found.parts(), found.left_out_parts()), note


def _told_apart(block: Block, *, queries: np.ndarray, features: str, n_folds: int, seed: int) -> tuple[_Scores, str]:
    denominator, residual, note = _features(block.parts[0], queries, features)
    documents = block.parts[0].document.values
    found = kernels.discriminate(denominator, residual, documents, n_folds=n_folds, seed=seed)
    return _Scores(found.parts(), found.left_out_parts(), found), note


def _estimates(scores: _Scores, level: float) -> Iterator[dict[str, object]]:
    """One row per part; intervals are withheld, with a note, where the documents cannot show any."""
    names = [one.name for one in fields(Parts)]
    estimate = np.array([getattr(scores.parts, name) for name in names])
    left_out = np.stack([getattr(scores.left_out, name) for name in names], axis=-1)
    x = interval(estimate, left_out, method="jackknife", level=level)
    at_limit = scores.auc is not None and bool((np.abs(estimate[: len(FEATURE_SETS)]) == 0.5).any())
    for k, name in enumerate(names):
        row = {"part": name, "estimate": estimate[k], "se": x.se[k], "low": x.low[k], "high": x.high[k], "p": x.p[k]}
        row["note"] = ""
        varies = x.se[k] > ROUNDING
        if scores.auc is not None and name in FEATURE_SETS:
            row |= {"estimate": 0.5 + estimate[k]}
            if abs(estimate[k]) == 0.5:
                row |= _at_limit(estimate[k] > 0, scores.auc, level)
            elif varies:
                row |= _auc_interval(0.5 + estimate[k], x.se[k], x.p[k], scores.auc, level)
        elif at_limit:
            row |= _withheld("no interval: made from an AUC at its limit")
        if not varies and row["note"] == "":
            row |= _withheld("no interval: the score does not vary between documents")
        yield row


def _auc_interval(auc: float, se: float, p: float, found: Discriminability, level: float) -> dict[str, object]:
    """Interval on the logit scale: it stays within (0, 1), and near 1 the plain one covers 0.88 where 0.95 is promised.

    No AUC below 1 can be better evidence than an AUC of 1.
    """
    half = t.ppf(0.5 + level / 2, len(found.documents) - 1) * se / (auc * (1 - auc))
    return {
        "low": expit(logit(auc) - half),
        "high": expit(logit(auc) + half),
        "p": max(p, _limit_p(found)),
    }


def _at_limit(ceiling: bool, found: Discriminability, level: float) -> dict[str, object]:
    """Interval and test of an AUC that is exactly 1, or 0, by the binomial over independent comparisons."""
    bound = found.ceiling_bound(level)
    return {
        "se": np.nan,
        "low": bound if ceiling else 0.0,
        "high": 1.0 if ceiling else 1 - bound,
        "p": _limit_p(found),
        "note": f"AUC at its limit: exact binomial limit over {found.n_independent} disjoint pairs of documents",
    }


def _limit_p(found: Discriminability) -> float:
    """Chance that independent comparisons without any information all turn out alike."""
    return float(min(1.0, 2 * 0.5**found.n_independent))


def _withheld(note: str) -> dict[str, object]:
    return {"se": np.nan, "low": np.nan, "high": np.nan, "p": np.nan, "note": note}


def _enumerate(positions: np.ndarray) -> str:
    """Positions as text: a run by its ends."""
    if len(positions) > 2 and (np.diff(positions) == 1).all():
        return f"{positions[0]} .. {positions[-1]}"
    return ", ".join(map(str, positions.tolist()))


def _ordered(table: pd.DataFrame) -> pd.DataFrame:
    return table[["condition", "layer", "part", "estimate", "se", "low", "high", "p", "q", "note"]]
