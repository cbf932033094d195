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
from posstats._version import __version__ as __version__

if TYPE_CHECKING:
    from posstats.dataset.attention import from_attention
    from posstats.dataset.simulate import simulate
    from posstats.dataset.store import open_dump, write_dump
    from posstats.dataset.terms import decompose
    from posstats.dumping.inputs.sequences import Sequences, random_sequences, repeat_sequences, text_sequences
    from posstats.dumping.model.load import load_model
    from posstats.dumping.run.dump import dump, join_dump
    from posstats.estimators.contrast import contrast
    from posstats.estimators.decoding import decode, discriminate
    from posstats.estimators.earlier_metrics import earlier_metrics
    from posstats.estimators.leakage import leakage, magnitude, removal, shares, size
    from posstats.estimators.model_level import model_level
    from posstats.estimators.position_tests import position_tests
    from posstats.estimators.reach import reach
    from posstats.estimators.readers import readers
    from posstats.estimators.sinks import sinks
    from posstats.estimators.trajectory import trajectory
    from posstats.ledger.claims import claims

#: Public name -> its module, which is fetched when the name is first used: statistics take seconds to import, the dump
#: wing needs torch, and neither the help of the command line nor its completion needs any of it.
_HOMES = {
    "Sequences": "posstats.dumping.inputs.sequences",
    "claims": "posstats.ledger.claims",
    "contrast": "posstats.estimators.contrast",
    "decode": "posstats.estimators.decoding",
    "decompose": "posstats.dataset.terms",
    "discriminate": "posstats.estimators.decoding",
    "dump": "posstats.dumping.run.dump",
    "earlier_metrics": "posstats.estimators.earlier_metrics",
    "from_attention": "posstats.dataset.attention",
    "join_dump": "posstats.dumping.run.dump",
    "leakage": "posstats.estimators.leakage",
    "load_model": "posstats.dumping.model.load",
    "magnitude": "posstats.estimators.leakage",
    "model_level": "posstats.estimators.model_level",
    "open_dump": "posstats.dataset.store",
    "position_tests": "posstats.estimators.position_tests",
    "random_sequences": "posstats.dumping.inputs.sequences",
    "reach": "posstats.estimators.reach",
    "readers": "posstats.estimators.readers",
    "removal": "posstats.estimators.leakage",
    "repeat_sequences": "posstats.dumping.inputs.sequences",
    "shares": "posstats.estimators.leakage",
    "simulate": "posstats.dataset.simulate",
    "size": "posstats.estimators.leakage",
    "sinks": "posstats.estimators.sinks",
    "text_sequences": "posstats.dumping.inputs.sequences",
    "trajectory": "posstats.estimators.trajectory",
    "write_dump": "posstats.dataset.store",
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
    "from_attention",
    "join_dump",
    "leakage",
    "load_model",
    "magnitude",
    "model_level",
    "open_dump",
    "position_tests",
    "random_sequences",
    "reach",
    "readers",
    "removal",
    "repeat_sequences",
    "shares",
    "simulate",
    "sinks",
    "size",
    "text_sequences",
    "trajectory",
    "write_dump",
]


#: Rooms that are there after ``import posstats as ps``, fetched in the same way.
_ROOMS = ("figures", "tables")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _ROOMS:
        return import_module(f"posstats.{name}")
    raise AttributeError(f"module 'posstats' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_ROOMS, *(name for name in globals() if name.startswith("__"))})
