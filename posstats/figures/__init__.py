"""Figures of results: axes in, axes out. All are here, as ``ps.figures.head_map``; a module per topic holds them."""

from posstats.figures.claims import contrast_by_quantity, verdict_grid
from posstats.figures.leakage import head_map, magnitude_by_octave, removal_by_octave, save_figure, shares_by_layer
from posstats.figures.position0 import (
    anchoring_by_position,
    attention_map,
    displacement_by_depth,
    distance_by_depth,
    identification_by_layer,
)
from posstats.figures.sinks import reach_by_layer, sink_map, sink_tokens

__all__ = [
    "anchoring_by_position",
    "attention_map",
    "contrast_by_quantity",
    "displacement_by_depth",
    "distance_by_depth",
    "head_map",
    "identification_by_layer",
    "magnitude_by_octave",
    "reach_by_layer",
    "removal_by_octave",
    "save_figure",
    "shares_by_layer",
    "sink_map",
    "sink_tokens",
    "verdict_grid",
]
