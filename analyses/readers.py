"""Which heads read the trajectory of position 0, and up to which depth it matters whose it is."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.errors import DesignError
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    conditions = [name for name in ds.condition.values.tolist() if name.startswith(("trajectory=", "bos=token:"))]
    if not conditions:
        return Findings()
    whats = {name: f"sink-reading minus other heads moved by {name}" for name in conditions}
    try:
        readers = ps.readers(ds, **inference.options())
    except DesignError as error:  # the sequences are too short to tell which heads read position 0
        return Findings(headline=[Quantity.absent(what, "nats^2", str(error)) for what in whats.values()])
    return Findings(
        tables={"readers": readers},
        figures={"displacement_by_depth": figures.displacement_by_depth(readers)},
        headline=[
            Quantity.of(what, "nats^2", readers, condition=name, quantity="difference") for name, what in whats.items()
        ],
    )
