"""posstats: where absolute position comes from in decoder-only transformers with rotary embeddings.

Dump a model's attention once into a labelled HDF5 dataset, split log attention into mask and residual-stream terms,
and read off leakage, shares, magnitudes and removal with cluster-bootstrap intervals.

>>> import posstats as ps
>>> ds = ps.simulate(n=30, length=64, seed=0).dataset
>>> result = ps.shares(ds, octaves=False, n_resamples=200)
>>> result.table.columns[:3].tolist()
['condition', 'queries', 'term']

Importing posstats takes no time: what a name needs is imported when it is first used. Only `load_model`, the
`*_sequences` functions, `dump` and `join_dump` import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from posstats import errors as errors

if TYPE_CHECKING:
    from posstats.attention_sinks import sinks
    from posstats.comparison import earlier_metrics
    from posstats.contrasts import contrast
    from posstats.decoders import decode, discriminate
    from posstats.dumping.inputs import Sequences, random_sequences, repeat_sequences, text_sequences
    from posstats.dumping.models import load_model
    from posstats.dumping.run import dump, join_dump
    from posstats.estimates import leakage, magnitude, removal, shares
    from posstats.heads import model_level
    from posstats.labelled import decompose
    from posstats.ledger import claims
    from posstats.positions import position_tests
    from posstats.rehearsal import simulate
    from posstats.store import open_dump, write_dump
    from posstats.trajectories import trajectory
    from posstats.trajectory_readers import readers

__version__ = "0.1.0"

#: Public name -> its module, which is fetched when the name is first used: statistics take seconds to import, the dump
#: wing needs torch, and neither the help of the command line nor its completion needs any of it.
_HOMES = {
    "Sequences": "posstats.dumping.inputs",
    "claims": "posstats.ledger",
    "contrast": "posstats.contrasts",
    "decode": "posstats.decoders",
    "decompose": "posstats.labelled",
    "discriminate": "posstats.decoders",
    "dump": "posstats.dumping.run",
    "earlier_metrics": "posstats.comparison",
    "join_dump": "posstats.dumping.run",
    "leakage": "posstats.estimates",
    "load_model": "posstats.dumping.models",
    "magnitude": "posstats.estimates",
    "model_level": "posstats.heads",
    "open_dump": "posstats.store",
    "position_tests": "posstats.positions",
    "random_sequences": "posstats.dumping.inputs",
    "readers": "posstats.trajectory_readers",
    "removal": "posstats.estimates",
    "repeat_sequences": "posstats.dumping.inputs",
    "shares": "posstats.estimates",
    "simulate": "posstats.rehearsal",
    "sinks": "posstats.attention_sinks",
    "text_sequences": "posstats.dumping.inputs",
    "trajectory": "posstats.trajectories",
    "write_dump": "posstats.store",
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
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'posstats' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
