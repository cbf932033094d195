"""Whether position 0 runs by itself, and what of its first token can be told from it."""

import xarray as xr

import posstats as ps
from posstats import figures
from posstats.errors import DesignError
from posstats.stats.inference.options import Inference
from posstats.study.findings import Findings, Quantity
from posstats.vocabulary import BASELINE


def analyse(ds: xr.Dataset, inference: Inference) -> Findings:
    if "trajectory_departure" not in ds:
        return Findings()
    absent = []
    try:
        trajectory = ps.trajectory(ds, **inference.options())
    except DesignError as error:  # the sequences are too short to identify first tokens
        repeated = [name for name in ds.condition.values.tolist() if name.startswith("bos=tokens:")]
        trajectory = ps.trajectory(ds.drop_sel(condition=repeated), **inference.options())
        what = "first token identified from {} heads, {}"
        absent = [
            Quantity.absent(what.format(heads, name), "fraction", str(error))
            for name in repeated
            for heads in ("sink-reading", "other")
        ]
    closed = trajectory.table[trajectory.table.quantity == "departure"]
    worst = closed.loc[closed.largest.idxmax()]
    identification = trajectory.identification
    tables = {"trajectory": trajectory}
    drawn = {"trajectory_by_depth": figures.distance_by_depth(trajectory, condition=_most_varied(trajectory.table))}
    headline = [
        Quantity(
            "largest departure of position 0 from running alone",
            "fraction",
            float(worst.largest),
            note=f"{worst.condition}, depth {worst.depth}; rounding: {worst.tolerance:g}",
        ),
        *absent,
    ]
    for condition in dict.fromkeys(identification.table.condition):
        tables["first_token"] = identification
        chance = identification.table.chance[identification.table.condition == condition].iloc[0]
        headline += [
            Quantity.of(
                f"first token identified from {heads} heads, {condition}",
                "fraction",
                identification,
                condition=condition,
                layers="all",
                heads=heads,
            ).noted(f"chance {chance:.3g}")
            for heads in ("sink-reading", "other")
        ]
    if identification.table.condition.nunique() == 1:
        drawn["first_token_by_layer"] = figures.identification_by_layer(identification)
    return Findings(tables, drawn, headline)


def _most_varied(table):
    """The condition that has both same and different first tokens, if there is one."""
    both = table.condition[table.quantity == "between_minus_within"]
    return both.iloc[0] if len(both) else BASELINE
