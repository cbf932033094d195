"""What dumps have in common, and whether they can be compared: sequences, architectures, training runs."""

import json
from collections.abc import Sequence

import numpy as np
import xarray as xr

from posstats.dataset.blocks import read
from posstats.dataset.terms import select_condition
from posstats.errors import DesignError
from posstats.vocabulary import BASELINE, TRAINED, VARIANT, Note

#: How the attribute `sequences` of a dump of independent uniform tokens begins.
IID = "iid tokens"


def model_kind(ds: xr.Dataset) -> str:
    """How the model of a dump came by its architecture: "trained", "adapted" or "inference-time variant"."""
    return str(ds.attrs.get("model_kind", TRAINED))


def model_of(ds: xr.Dataset) -> str:
    """The model of a dump, as it was named."""
    return str(ds.attrs.get("model", ds.attrs.get("model_id", "unnamed model")))


def same_sequences(a: xr.Dataset, b: xr.Dataset) -> bool:
    """Whether two dumps hold the same token ids, from the same documents, in the same order."""
    pairs = [(a.document, b.document)]
    pairs += [(select_condition(a, BASELINE).token_id, select_condition(b, BASELINE).token_id)]
    return all(np.array_equal(read(x).values, read(y).values) for x, y in pairs)


def in_order_of(first: xr.Dataset, others: Sequence[xr.Dataset]) -> tuple[list[xr.Dataset], list[Note]]:
    """Put the sequences of some dumps in the order of another, where they are the same ones; say what was done.

    Where documents have the same names and not the same sequences, they are independent, and a note says so.
    """
    wanted, aligned, notes = _identities(first), [], []
    for other in others:
        there = _identities(other)
        if there != wanted and sorted(there) == sorted(wanted):
            places: dict[tuple[str, bytes], list[int]] = {}
            for place, identity in enumerate(there):
                places.setdefault(identity, []).append(place)
            other = other.isel(sequence=[places[identity].pop(0) for identity in wanted])
            notes.append(Note("sequences of b are put in the order of those of a", "design"))
        elif there != wanted and {name for name, _ in there} & {name for name, _ in wanted}:
            text = "documents have the same names on both sides and not the same sequences: they count as independent"
            notes.append(Note(text, "design"))
        aligned.append(other)
    return aligned, list(dict.fromkeys(notes))


def _identities(ds: xr.Dataset) -> list[tuple[str, bytes]]:
    """Document and tokens of every sequence."""
    tokens = read(select_condition(ds, BASELINE).token_id).transpose("sequence", ...).values
    documents = np.atleast_1d(read(ds.document).values)
    return [(str(name), row.astype(np.int64).tobytes()) for name, row in zip(documents, tokens, strict=True)]


def declared_windows(ds: xr.Dataset) -> bool:
    """Whether the attributes of a dump speak of a sliding window in some layer."""
    types = json.loads(str(ds.attrs.get("layer_types", "[]")))
    return int(ds.attrs.get("inference_time_window", 0)) > 0 or any("sliding" in one for one in types)


def window_binds(ds: xr.Dataset) -> bool:
    """Whether some query of some layer sees fewer keys than stand before it, itself counted."""
    everything = np.arange(1, ds.sizes["query"] + 1)
    return bool((read(ds.visible_keys).values < everything).any())


def check_window(ds: xr.Dataset, name: str) -> None:
    """Raise DesignError where a sliding window is declared and never binds."""
    if declared_windows(ds) and not window_binds(ds):
        raise DesignError(
            f"The sliding window of {name} never binds: its {ds.sizes['query']} analysed queries fit into it, so "
            "nothing can be said about sliding windows. Dump longer sequences or set a narrower window."
        )


def check_design(sides: Sequence[Sequence[xr.Dataset]], *, allow_mixed: bool = False) -> list[str]:
    """Check that two sides, each one or several training runs, can be compared; return what is to be kept in mind.

    With `allow_mixed`, an inference-time variant may stand beside models used as they were trained. Raises DesignError,
    which says why, if they cannot be compared.
    """
    every = [ds for side in sides for ds in side]
    for ds in every:
        check_window(ds, str(ds.attrs.get("model_variant") or ds.attrs.get("model", "a model")))
        if ds.sizes["query"] != every[0].sizes["query"]:
            raise DesignError(
                f"Dumps of {ds.sizes['query']} and of {every[0].sizes['query']} analysed queries cannot be compared: "
                "leakage and magnitudes depend on the length. Dump the same length."
            )
        if ds.offset.values.tolist() != every[0].offset.values.tolist():
            raise DesignError(
                f"Offsets {ds.offset.values.tolist()} and {every[0].offset.values.tolist()} cannot be compared; dump "
                "the same offsets."
            )
    for side in sides:
        _check_runs(side)
    notes = []
    if len({len(side) for side in sides} | {1}) == 1:
        notes.append("one training run on each side: intervals speak of new documents, not of new training runs")
    kinds = sorted({model_kind(ds) for ds in every})
    if len(kinds) > 1:
        if VARIANT in kinds and not allow_mixed:
            raise DesignError(
                f"Models of the kinds {', '.join(kinds)} are mixed: a model changed after training differs from one "
                "that was trained under its architecture in more than the architecture. Compare like with like, or "
                "pass allow_mixed=True; the result says so."
            )
        notes.append(f"models of different kinds are compared: {', '.join(kinds)}")
    sizes = [(side[0].sizes["layer"], side[0].sizes["head"]) for side in sides]
    if len(set(sizes)) > 1:
        both = " and ".join(f"{layers} x {heads}" for layers, heads in sizes)
        notes.append(
            f"the models have {both} layers x heads: leakage, magnitude and slope are sums over heads; compare shares "
            "and removals"
        )
    return [Note(note, "design") for note in notes]


def _check_runs(runs: Sequence[xr.Dataset]) -> None:
    """Training runs of one architecture read the same sequences, and are different weights."""
    for one in runs[1:]:
        if any(one.sizes[dim] != runs[0].sizes[dim] for dim in ("layer", "head")):
            raise DesignError("Training runs of one architecture must have the same number of layers and heads.")
        if not same_sequences(runs[0], one):
            raise DesignError(
                "Training runs of one architecture must be recorded on the same sequences, so that what differs "
                "between them is the training. Dump all of them with the same sequences and seed."
            )
    digests = [str(one.attrs["weights_sha256"]) for one in runs if "weights_sha256" in one.attrs]
    # Without digests, the numbers of one sequence tell whether two recordings are of the same weights.
    names = ["logit", "sink_logit", "log_denominator_rest"]
    first = [select_condition(one[names].isel(sequence=0), BASELINE) for one in runs]
    numbers = [b"".join(read(one[name]).values.tobytes() for name in names) for one in first]
    if len(set(digests)) < len(digests) or (not digests and len(set(numbers)) < len(numbers)):
        raise DesignError(
            "The same weights occur twice among the training runs of one architecture: variants or repeated dumps of "
            "one model are not independent runs."
        )
