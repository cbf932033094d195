"""The trajectory of position 0: closed, constant under BOS, a fingerprint of the first token (docs/method.md, 7)."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import fraction, whole_number
from posstats.dataset.blocks import read
from posstats.dataset.door import tolerance_of, whole_dump
from posstats.dataset.parameters import explained
from posstats.dataset.terms import select_condition
from posstats.errors import DesignError
from posstats.estimators.rows import Documents, adjusted, conditions
from posstats.estimators.sinks import attention_on_position_0
from posstats.results.position0 import IdentificationResult, TrajectoryResult
from posstats.stats.decoding.identification import Grams, Identification, Identifier
from posstats.stats.decoding.ridge import FEWEST_FOLDS, MOST_FOLDS
from posstats.stats.earlier import SINK_EPSILON
from posstats.stats.inference.options import Inference
from posstats.stats.inference.resample import Interval
from posstats.stats.position0 import pair_mean_at, relative_distances
from posstats.vocabulary import Note

#: Conditions in which few first tokens are repeated over many documents.
_REPEATED = "bos=tokens:"
_GROUPS = ("sink-reading", "other")
_ALL = "all"
_NUMBERS = ("estimate", "se", "low", "high")


@explained
def trajectory(
    data: xr.Dataset,
    *,
    epsilon: float = SINK_EPSILON,
    n_folds: int = 5,
    level: float = 0.95,
    method: str | None = None,
    n_resamples: int = 2000,
    n_permutations: int = 1999,
    seed: int = 0,
    adjust: str = "bh",
) -> TrajectoryResult:
    """Ask whether position 0 runs by itself, and what of its first token can be told from it.

    - **Closed**: ``||inside a sequence - alone|| / ||alone||`` at every depth, the same input run alone being a
      sequence of length 1. Holds where the largest over sequences is within rounding: 1e-4 for a model computed in
      float32, 1e-9 in float64, 1e-2 in float16 and 8e-2 in bfloat16 (ten steps of their precision).
    - **Constant, and a fingerprint**: the relative distance ``||a - b|| / ((||a|| + ||b||) / 2)`` between
      trajectories of sequences from different documents, `within` one first token (0 to the same rounding if the
      system is closed) and `between` first tokens. Sequences share a first token where they share the embedding at
      depth 0.
    - **Identified downstream**: under `bos=tokens:K` first tokens repeat over documents. From ``head_output``, what
      heads pass on at the queries i >= 16, the first token of a document is predicted by a model that has seen
      others.

    Parameters
    ----------
    %(dump)s
    %(epsilon)s
        Of the identification, in the training documents of a fold.
    %(n_folds)s
    %(level)s
    %(method)s
    %(n_resamples)s
    %(n_permutations)s
        Here first tokens are permuted over documents.
    %(seed)s
    %(adjust)s
        The family is the depths of one condition; for the identification, all rows of one condition and group of heads.

    Returns
    -------
    TrajectoryResult
        Per condition, quantity and depth; the identification in `identification`.

    Raises
    ------
    InputError
        For an option that is not allowed, or a dump without what is needed.
    DesignError
        With fewer than 5 documents, or first tokens of `bos=tokens:K` that single documents have.
    NumericalError
        If the dump holds values that are not finite.

    Warns
    -----
    FewDocumentsWarning
        With fewer than 24 documents.

    Notes
    -----
    Distances are never turned into angles: the arccos of a cosine near 1 loses half of the digits. Under `bos=tokens:K`
    documents of one token have one trajectory, and intervals over documents speak of these K tokens; under `bos=none`
    every sequence has a token of its own, and they speak of tokens like these.

    The classifier is the nearest centroid of standardised features: nothing is tuned. Its accuracy is the mean over
    documents; the interval is Clopper and Pearson's exact one, which also serves an accuracy of exactly 0 or 1, with as
    many trials as a fold trains on documents, because documents of one fold share a model. The test permutes first
    tokens over documents: tokens are dealt to documents without regard to their content, so whole documents are
    exchangeable if nothing of the token is passed on; the cross-validation is made anew for every permutation, ``p =
    (b + 1) / (n + 1)``.

    References
    ----------
    Tibshirani, Hastie, Narasimhan & Chu (2003), doi:10.1214/ss/1056397488, for nearest centroids of standardised
    features (here without shrinking).

    Examples
    --------
    >>> import posstats as ps
    >>> ds = ps.simulate(n=30, length=32, layers=2, seed=0).dataset
    >>> ds["trajectory_departure"] = 0 * ds.residual_norm.isel(query=0, drop=True)  # as a dump has it
    >>> result = ps.trajectory(ds)
    >>> [bool(held) for held in result.table.query("quantity == 'within'").holds]
    [True, True, True]
    """
    inference = Inference(level, method, n_resamples, n_permutations, adjust, seed).of("contrast")
    epsilon, n_folds = fraction("epsilon", epsilon), whole_number("n_folds", n_folds, FEWEST_FOLDS, MOST_FOLDS)
    data = whole_dump(data, ("trajectory", "trajectory_departure"), "Trajectories read a dump")
    design = Documents.of(data, inference)
    dtype, tolerance = tolerance_of(data)
    rows: list[dict[str, object]] = []
    for name, one in conditions(data):
        for row in [*_departures(one, design, tolerance), *_distances(one, design, tolerance)]:
            rows.append({"condition": name} | row)
    table = adjusted(pd.DataFrame(rows), ["condition", "quantity"], inference, {"p": "q"})
    columns = ["condition", "quantity", "depth", *_NUMBERS, "p", "q", "largest", "tolerance", "holds", "note"]
    settings = design.settings | {"adjustment": inference.adjust, "dtype": dtype}
    return TrajectoryResult(
        table[columns],
        settings,
        design.notes,
        identification=_identification(data, design, epsilon, n_folds, inference),
    )


def _departures(one: xr.Dataset, design: Documents, tolerance: float) -> Iterator[dict[str, object]]:
    """Closedness of one condition, by depth."""
    departure = read(one.trajectory_departure).transpose("sequence", "depth").values.astype(np.float64)
    x = design.mean(design.sums(departure))
    for k, depth in enumerate(one.depth.values.tolist()):
        row: dict[str, object] = {"quantity": "departure", "depth": depth} | _numbers(x, k)
        if np.isnan(departure[:, k]).any():
            row["note"] = "not defined: alone, position 0 is the zero vector"
        else:
            row |= _judged(float(departure[:, k].max()), tolerance)
        yield row


def _distances(one: xr.Dataset, design: Documents, tolerance: float) -> Iterator[dict[str, object]]:
    """Distances within and between first tokens of one condition, by depth."""
    code, weights = design.code, design.replicates.weights
    same: NDArray[np.bool_] | None = None
    apart = code[:, None] != code
    for k, depth in enumerate(one.depth.values.tolist()):
        distance = relative_distances(read(one.trajectory.isel(depth=k)).transpose("sequence", "hidden").values)
        if same is None:  # depth 0: the embeddings
            same = distance == 0
        values, pairs = [], {"within": same & apart, "between": ~same & apart}
        for quantity, chosen in pairs.items():
            values.append(pair_mean_at(distance, chosen, code, weights))
            if chosen.any():
                largest = float(distance[chosen].max())
                row = {"quantity": quantity, "depth": depth} | _numbers(design.replicates.interval(values[-1]), ())
                bound = tolerance if quantity == "within" else np.nan
                yield row | _judged(largest, bound)
        if all(chosen.any() for chosen in pairs.values()):
            x = design.replicates.interval(values[1] - values[0])
            cell = design.cell(x, (), 0.0)
            blank = {"largest": np.nan, "tolerance": np.nan, "holds": np.nan}
            yield {"quantity": "between_minus_within", "depth": depth} | cell | blank


def _numbers(x: Interval, at: int | tuple[int, ...]) -> dict[str, object]:
    """A mean that is described and not tested."""
    row: dict[str, object] = {name: float(getattr(x, name)[at]) for name in _NUMBERS}
    return row | {"p": np.nan, "largest": np.nan, "tolerance": np.nan, "holds": np.nan, "note": ""}


def _judged(largest: float, tolerance: float) -> dict[str, object]:
    """The largest value, and whether it is rounding, where that is asked."""
    return {
        "largest": largest,
        "tolerance": tolerance,
        "holds": np.nan if np.isnan(tolerance) else largest <= tolerance,
    }


def _identification(
    data: xr.Dataset,
    design: Documents,
    epsilon: float,
    n_folds: int,
    inference: Inference,
) -> IdentificationResult:
    """Rows for every condition that repeats first tokens."""
    rows: list[dict[str, object]] = []
    notes = design.notes
    names = [name for name in data.condition.values.tolist() if name.startswith(_REPEATED)]
    if names:
        data = whole_dump(data, ("head_output", "token_id"), "The first token is identified from what heads pass on")
    else:
        notes = (*notes, Note("no condition repeats first tokens over documents: dump bos=tokens:K", "design"))
    for name in names:
        one = select_condition(data, name)
        labels = _first_tokens(one, design.code)
        identifier = Identifier.of(
            labels, design.code, n_folds=n_folds, n_permutations=inference.n_permutations, seed=inference.seed
        )
        attention = attention_on_position_0(one)
        total: Grams | None = None
        found: list[tuple[str, list[Identification | None]]] = []
        for index, layer in enumerate(one.layer.values.tolist()):
            output = read(one.head_output.isel(layer=index)).transpose("sequence", "head", "channel").values
            grams = identifier.grams(output, attention[:, index], epsilon)
            found.append((str(layer), identifier.identify(grams)))
            total = grams if total is None else total + grams
        if total is not None:
            found.insert(0, (_ALL, identifier.identify(total)))
        chance = 1 / len(np.unique(labels))
        for layers, groups in found:
            for heads, one_group in zip(_GROUPS, groups, strict=True):
                key = {"condition": name, "layers": layers, "heads": heads}
                rows.append(key | _scored(one_group, inference.level) | {"chance": chance})
    columns = ["condition", "layers", "heads", *_NUMBERS, "p", "chance", "n_heads", "note"]
    table = adjusted(pd.DataFrame(rows, columns=columns), ["condition", "heads"], inference, {"p": "q"})
    settings = {name: design.settings[name] for name in ("n_documents", "n_sequences")} | {
        "level": inference.level,
        "standard_errors": "exact binomial, trials: documents that a fold trains on",
        "n_folds": n_folds,
        "n_permutations": inference.n_permutations,
        "seed": inference.seed,
        "sink_epsilon": epsilon,
        "adjustment": inference.adjust,
    }
    return IdentificationResult(table, settings, notes)


def _first_tokens(one: xr.Dataset, code: NDArray[np.int64]) -> NDArray[np.int64]:
    """First token of every document."""
    first = read(one.token_id.isel(query=0)).values.astype(np.int64)
    labels = first[np.unique(code, return_index=True)[1]]
    if (labels[code] != first).any():
        raise DesignError("Sequences of one document begin with different tokens; there must be one per document.")
    return labels


def _scored(found: Identification | None, level: float) -> dict[str, object]:
    """Accuracy with its interval and test."""
    if found is None:
        nothing: dict[str, object] = dict.fromkeys((*_NUMBERS, "p", "n_heads"), np.nan)
        return nothing | {"note": "no such head in the training documents of some fold"}
    low, high = found.interval(level)
    se = float(found.by_document.std(ddof=1) / np.sqrt(len(found.by_document)))
    # The standard error over documents is 0 then; the exact interval does not rest on it.
    note = {0.0: "no document was identified", 1.0: "every document was identified"}.get(found.accuracy, "")
    numbers = {"estimate": found.accuracy, "se": se, "low": low, "high": high, "p": found.p}
    return numbers | {"n_heads": found.n_heads, "note": note}
