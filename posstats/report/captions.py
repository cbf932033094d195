"""What figures show, and what to look at in them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caption:
    """Words beside a figure.

    Attributes
    ----------
    shows : str
        What is drawn; its alternative text.
    look : str
        What to look at.
    """

    shows: str
    look: str


_CAPTIONS = {
    "shares_by_layer": Caption(
        "Share of absolute-position leakage by layer: the mask's and the residual stream's.",
        "Look at layer 0, where random tokens leave the residual stream nothing to tell and the mask's share should be "
        "near 1, and at where the two lines cross. A share above 1 or below 0 means that the two work against each "
        "other; a layer without a point has no significant leakage to share out.",
    ),
    "residual_share_map": Caption(
        "Residual-stream share of leakage of every head, layers from left to right.",
        "Look for columns of one colour: layers whose heads agree. Marks tell significant heads from those whose share "
        "is withheld because their leakage is not significant; an empty cell is no evidence either way.",
    ),
    "magnitude_by_octave": Caption(
        "Residual magnitude by octave of the query position, one line per condition.",
        "Look at the left end: how far the residual terms of the first queries are from their long-context value, and "
        "how fast that fades. The gap between the baseline and the other lines is what BOS contributes.",
    ),
    "removal_by_octave": Caption(
        "Fraction of the residual magnitude that goes when BOS is replaced, by octave of the query position.",
        "Look at the early queries, 2 to 15, and whether the bars reach the dashed line, the 0.40 that the abstract of "
        "arXiv:2606.06160 states. Below 0 a replacement adds to the magnitude; octaves without a point had nothing to "
        "remove.",
    ),
    "attention_on_position_0": Caption(
        "Mean attention on position 0 of every head, layers from left to right; dots mark sink-reading heads.",
        "Look at which layers the dark cells and dots lie in: heads there read the trajectory of position 0.",
    ),
    "anchoring": Caption(
        "Attention of sink-reading heads on the BOS token moved to P, and on position 0.",
        "Look at which line is higher: attention that follows the token is anchored to the token, attention that stays "
        "is anchored to the position.",
    ),
    "trajectory_by_depth": Caption(
        "Distances between trajectories of position 0, and their departure from running alone, by depth.",
        "Look at the departure: at every depth it should stay below the line of what rounding can do, for then "
        "position 0 runs by itself. Distances between first tokens say how much a trajectory tells of its token.",
    ),
    "first_token_by_layer": Caption(
        "Accuracy of identifying the first token from what heads pass on, by layer.",
        "Look at how far sink-reading heads lie above chance, and whether the other heads know as much.",
    ),
    "displacement_by_depth": Caption(
        "How far the residual terms move when the trajectory of position 0 becomes another token's from a depth on.",
        "Look at whether sink-reading heads move more than the others, and at the depth from which on a replacement "
        "moves nothing any more.",
    ),
    "verdicts": Caption(
        "Verdicts on the claims of arXiv:2606.06160, a column per claim.",
        "Look at the contradicted and the inconclusive first; the ledger says which part of which criterion decided.",
    ),
}


def caption_of(name: str) -> Caption:
    """Caption of a figure by its file name; of one that posstats does not know, its name.

    Examples
    --------
    >>> caption_of("shares_by_layer").shows
    "Share of absolute-position leakage by layer: the mask's and the residual stream's."
    >>> caption_of("my_own_plot")
    Caption(shows='Figure my own plot.', look='Its analysis file says what it shows.')
    """
    unknown = Caption(f"Figure {name.replace('_', ' ')}.", "Its analysis file says what it shows.")
    return _CAPTIONS.get(name, unknown)
