"""What figures show, and what to look at in them."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caption:
    """Words beside a figure."""

    #: What is drawn; its alternative text.
    shows: str
    #: What to look at.
    look: str


_CAPTIONS = {
    "shares_by_layer": Caption(
        "Share of absolute-position leakage by layer: the mask's and the residual stream's.",
        "Look at where the two lines cross: below it one of them tells more, above it the other. Bars are intervals. A "
        "share above 1 or below 0, the dotted lines, means that the two work against each other; a cross on the axis "
        "marks a layer without leakage to share out. Of independent random tokens without a BOS the mask's "
        "share at layer 0 is 1; of other sequences it need not be.",
    ),
    "residual_share_map": Caption(
        "Residual-stream share of leakage of every head, layers from left to right.",
        "Look for columns of one colour: layers whose heads agree. Orange is a positive share, purple a negative one: "
        "the residual stream works against the mask. A dot marks a share that differs from 0; a cell without one is no "
        "evidence either way, and a grey cell with a cross has no leakage to share out.",
    ),
    "magnitude_by_octave": Caption(
        "Residual magnitude by octave of the query position, one line per condition.",
        "Look at the left end: how far the residual terms of the first queries are from the steady state, and "
        "how fast that fades to the right. The gap between the baseline and another line is what that replacement of "
        "BOS changes. The scale is logarithmic unless an interval reaches 0.",
    ),
    "removal_by_octave": Caption(
        "Fraction of the residual magnitude that goes when BOS is replaced, by octave of the query position.",
        "Look at the octaves of the early queries, 2 to 15, and whether the bars, which are intervals, reach the "
        "dashed line, the 0.40 that the abstract of arXiv:2606.06160 states. Below 0 a replacement adds to the "
        "magnitude; a cross on the axis marks an octave that had nothing to remove.",
    ),
    "attention_on_position_0": Caption(
        "Mean attention on position 0 of every head, layers from left to right; dots mark sink-reading heads.",
        "Look at which layers the bright cells lie in: dark blue is no attention on position 0, yellow all of it. A "
        "bright cell with a dot is significantly above the threshold: heads there read the trajectory of position 0.",
    ),
    "anchoring": Caption(
        "Attention of sink-reading heads on the BOS token moved to P, on position 0, and the difference of the two.",
        "Look at which of the coloured lines is higher: attention that follows the token is anchored to the token, "
        "attention that stays is anchored to the position. The black line, with intervals, is their difference: above "
        "0 the token wins. Where no head is sink-reading there is nothing to draw, and the frame says so.",
    ),
    "trajectory_by_depth": Caption(
        "Distances between trajectories of position 0, and their departure from running alone, by depth.",
        "Look at the departure: at every depth it should stay below the dashed line, what rounding can do, for then "
        "position 0 runs by itself. Distances between first tokens, where the sequences have several, say how much a "
        "trajectory tells of its token. The scale is logarithmic and has no 0: what is smaller than the number above "
        "the figure, 0 itself included, is drawn there.",
    ),
    "first_token_by_layer": Caption(
        "Accuracy of identifying the first token from what heads pass on, by layer.",
        "Look at how far sink-reading heads lie above chance, the dashed line, and whether the other heads know as "
        "much. A layer without such heads has no point. Every fold chooses its heads anew; one without any leaves no "
        "number over all layers.",
    ),
    "displacement_by_depth": Caption(
        "How far the residual terms move when the trajectory of position 0 becomes another token's from a depth on.",
        "Look at whether sink-reading heads move more than the others, and at the depth from which on a replacement "
        "moves nothing any more. The scale is logarithmic unless an interval reaches 0. Where no layer has heads of "
        "both kinds there is nothing to draw, and the frame says so.",
    ),
    "verdicts": Caption(
        "Verdicts on the claims of arXiv:2606.06160, a column per claim.",
        "Look at the contradicted (✗) and the inconclusive (?) first; the ledger says which part of which criterion "
        "decided. Grey is not testable here, with the reason in the ledger.",
    ),
}


def caption_of(name: str) -> Caption:
    """Caption of a figure by its file name; of one that posstats does not know, its name.

    >>> caption_of("shares_by_layer").shows
    "Share of absolute-position leakage by layer: the mask's and the residual stream's."
    >>> caption_of("my_own_plot")
    Caption(shows='Figure my own plot.', look='Its analysis file says what it shows.')
    """
    unknown = Caption(f"Figure {name.replace('_', ' ')}.", "Its analysis file says what it shows.")
    return _CAPTIONS.get(name, unknown)
