"""posstats: where absolute position comes from in decoder-only transformers with rotary embeddings.

Dump a model's attention once into a labelled HDF5 dataset, split log attention into mask and residual-stream terms,
and read off leakage, shares, magnitudes and removal with cluster-bootstrap intervals.

>>> import posstats as ps
>>> ds = ps.simulate(n=30, length=64, seed=0).dataset
>>> result = ps.shares(ds, octaves=False, n_resamples=200)
>>> result.table.columns[:3].tolist()
['condition', 'queries', 'term']

Importing posstats does not import torch; only `load_model`, the `*_sequences` functions and `dump` do, when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posstats.attention_sinks import sinks
from posstats.comparison import earlier_metrics
from posstats.contrasts import contrast
from posstats.decoders import decode, discriminate
from posstats.estimates import leakage, magnitude, removal, shares
from posstats.heads import model_level
from posstats.labelled import decompose
from posstats.ledger import claims
from posstats.positions import position_tests
from posstats.rehearsal import simulate
from posstats.store import open_dump, write_dump
from posstats.trajectories import trajectory
from posstats.trajectory_readers import readers

if TYPE_CHECKING:
    from posstats.dumping.inputs import Sequences, random_sequences, repeat_sequences, text_sequences
    from posstats.dumping.models import load_model
    from posstats.dumping.run import dump, join_dump

__version__ = "0.1.0"

# The dump wing needs torch; its names are fetched when they are first used.
_DUMP_WING = {
    "Sequences": "posstats.dumping.inputs",
    "dump": "posstats.dumping.run",
    "join_dump": "posstats.dumping.run",
    "load_model": "posstats.dumping.models",
    "random_sequences": "posstats.dumping.inputs",
    "repeat_sequences": "posstats.dumping.inputs",
    "text_sequences": "posstats.dumping.inputs",
}

__all__ = [
    "Sequences",
    "claims",
    "contrast",
    "decode",
    "decompose",
    "discriminate",
    "dump",
    "earlier_metrics",
    "join_dump",
    "leakage",
    "load_model",
    "magnitude",
    "model_level",
    "open_dump",
    "position_tests",
    "random_sequences",
    "readers",
    "removal",
    "repeat_sequences",
    "shares",
    "simulate",
    "sinks",
    "text_sequences",
    "trajectory",
    "write_dump",
]


def __getattr__(name: str) -> Any:
    if name in _DUMP_WING:
        return getattr(import_module(_DUMP_WING[name]), name)
    raise AttributeError(f"module 'posstats' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
