"""Synthetic dumps with known truth, to rehearse a design before a model is run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from posstats.arguments import items, labels, number, several, shown, text, whole_number
from posstats.dataset.seals import totals
from posstats.errors import InputError
from posstats.stats.synthetic.design import Design, Effects, Noise, Truth, expected_terms
from posstats.stats.synthetic.simulate import Recorded, simulate_stream, simulate_terms
from posstats.vocabulary import (
    BASELINE,
    COORDINATES,
    SCHEMA_VERSION,
    VARIABLES,
    analysed_half,
    reference_queries,
)


def recorded_dataset(
    recorded: Recorded,
    length: int,
    attrs: Mapping[str, object],
    arrays: Mapping[str, NDArray[Any]] | None = None,
    coordinates: Mapping[str, object] | None = None,
) -> xr.Dataset:
    """Label recorded quantities as a dump does.

    Parameters
    ----------
    recorded : Recorded
    length : int
        Tokens per sequence.
    attrs : mapping
        Attributes, beside those of the schema.
    arrays : mapping of str to ndarray, optional
        Other variables of the schema, in its dims.
    coordinates : mapping of str to array_like, optional
        Coordinates of the schema, instead of numbers or where there are none.

    Returns
    -------
    xarray.Dataset
        The variables of `recorded` that were recorded, and `arrays`.
    """
    shape = recorded.logit.shape
    labels: dict[str, Any] = {
        "condition": list(recorded.conditions),
        "sequence": np.arange(shape[1]),
        "document": recorded.document,
        "layer": np.arange(shape[2]),
        "head": np.arange(shape[3]),
        "query": np.arange(shape[4]),
        "offset": list(recorded.offsets),
        "lag": np.arange(shape[4]),
    }
    labels |= coordinates or {}
    values = {name: getattr(recorded, name) for name in VARIABLES if hasattr(recorded, name)}
    if np.isnan(recorded.steady_square).all():
        del values["steady_square"]
    values |= arrays or {}
    values |= totals(values)

    def described(units: str, long_name: str) -> dict[str, str]:
        return {"units": units, "long_name": long_name}

    return xr.Dataset(
        {
            name: (VARIABLES[name].dims, array, described(VARIABLES[name].units, VARIABLES[name].long_name))
            for name, array in values.items()
        },
        coords={
            name: (COORDINATES[name][0], label, described(*COORDINATES[name][1:])) for name, label in labels.items()
        },
        attrs={
            "schema_version": SCHEMA_VERSION,
            "length": length,
            "reference_queries": reference_queries(length),
            **attrs,
        },
    )


#: Largest size of a simulation along any dimension: a longer one is a mistake, and would not fit into memory.
_LARGEST = 2**16


@dataclass(frozen=True, slots=True)
class Simulation:
    """A synthetic dump and what is true in it.

    Attributes
    ----------
    dataset : xarray.Dataset
        In the dump schema; every estimator takes it.
    truth : Truth
        Exact leakage, shares, magnitudes, removal and slopes of the design.
    """

    dataset: xr.Dataset
    truth: Truth


def simulate(
    n: int = 48,
    length: int = 64,
    *,
    sequences_per_document: int | Sequence[int] = 1,
    layers: int = 1,
    heads: int = 4,
    offsets: Sequence[int] = (0, 1, 2, 4, 8),
    conditions: Sequence[str] | Mapping[str, Effects] = (BASELINE,),
    strength: float = 1.0,
    removal: float = 0.4,
    noise: Noise | None = None,
    window: int | Sequence[int | None] | None = None,
    seed: int = 0,
) -> Simulation:
    """Simulate a dump whose leakage, shares, magnitudes and removal are known exactly.

    Use it to see how wide the intervals of a planned dump will be, and whether they cover the truth.

    Parameters
    ----------
    n : int
        Documents.
    length : int
        Tokens per sequence, T, divisible by 4; the first half is analysed.
    sequences_per_document : int or sequence of int
        One number, or one per document.
    layers, heads : int
        Size of the model.
    offsets : sequence of int
        Recorded offsets.
    conditions : sequence of str, or mapping of str to Effects
        Names: the baseline has residual-stream terms that decay with the query position as ``strength / (i + 1)``,
        every other condition the same terms scaled so that `removal` of their magnitude is gone in the order
        "mask_first" (`truth` is in the order "shapley", in which the keys' number has a part of the sink). A mapping
        prescribes the mean function of every term (:class:`posstats.stats.synthetic.design.Effects`).
    strength : float
        Size of the residual-stream terms in nats; 0 leaves the mask alone.
    removal : float
        Share of the residual magnitude that the conditions other than the baseline remove.
    noise : Noise, optional
        Content noise (:class:`posstats.stats.synthetic.design.Noise`): size, tails, autocorrelation, what
        documents share.
    window : int, or int or None per layer, optional
        Sliding window.
    seed : int
        One seed gives one dataset.

    Returns
    -------
    Simulation

    Raises
    ------
    InputError
        For sizes, offsets or effects that do not fit together.

    Examples
    --------
    >>> simulation = simulate(n=30, length=64, conditions=["baseline", "bos=mean"], removal=0.4)
    >>> round(simulation.truth.removal("bos=mean", range(2, 16)), 3)
    0.383
    >>> simulation.dataset.sizes["sequence"]
    30
    """
    n, length = whole_number("n", n, 1, _LARGEST), whole_number("length", length, 4, _LARGEST)
    analysed = analysed_half(length)
    layers, heads = whole_number("layers", layers, 1, _LARGEST), whole_number("heads", heads, 1, _LARGEST)
    offsets = labels("offsets", items("offsets", offsets, "whole numbers"), range(analysed - 1), "whole numbers")
    strength, removal = number("strength", strength), number("removal", removal, most=1)
    seed = whole_number("seed", seed, 0, 2**64 - 1)
    per_document = items("sequences_per_document", sequences_per_document, "whole numbers")
    if not isinstance(noise, Noise | None):
        raise InputError(f"noise must be posstats.stats.synthetic.design.Noise or None, not {shown(noise)}.")
    position = np.arange(analysed, dtype=np.float64)
    decay = strength / (position + 1)

    def effects(scale: float) -> Effects:
        # Constant on purpose in the logits: the sink and the other denominators are what moves. Early queries read
        # position 0 more than an ordinary key, and their other logits are lower.
        return Effects(sink=-0.8 * scale * decay, denominator_drift=-0.6 * scale * decay)

    if not isinstance(conditions, Mapping):
        names = items("conditions", conditions, "text")
        labels("conditions", names, names, "text")
        conditions = {name: effects(1.0 if name == BASELINE else np.sqrt(1 - removal)) for name in names}
    for name, of in conditions.items():
        text("conditions", name)
        if not isinstance(of, Effects):
            raise InputError(f"A mapping of conditions has Effects as values, not {shown(of)}.")
    design = Design(
        n_documents=n,
        sequences_per_document=per_document[0] if len(per_document) == 1 else per_document,
        length=length,
        n_layers=layers,
        n_heads=heads,
        offsets=tuple(offsets),
        conditions=conditions,
        noise=noise or Noise(),
        window=_windows(window),
    )
    seeds = np.random.SeedSequence(seed).spawn(2)
    recorded, stream = simulate_terms(design, seeds[0]), simulate_stream(design, seeds[1])
    arrays = {name: getattr(stream, name) for name in VARIABLES if hasattr(stream, name)}
    coordinates = {
        "document": [f"simulated {seed}-{code}" for code in recorded.document],
        "token": np.arange(length),
        "depth": np.arange(layers + 1),
    }
    attrs = {
        "model_id": "simulated",
        "seed": seed,
        "source": "posstats.simulate: synthetic, of known truth",
    }
    dataset = recorded_dataset(recorded, length, attrs, arrays, coordinates)
    return Simulation(dataset, expected_terms(design))


def _windows(window: object) -> int | list[int | None] | None:
    """Whole numbers or None, a single one or one per layer."""
    each = several("window", [window] if window is None or isinstance(window, Integral) else window, "whole numbers")
    checked = [None if one is None else whole_number("window", one, 1, _LARGEST) for one in each]
    return checked[0] if window is None or isinstance(window, Integral) else checked
