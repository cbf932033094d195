"""Parameters that many functions share: the text that explains each of them, written once."""

import re
from collections.abc import Callable
from typing import TypeVar

from posstats.stats.inference.options import Inference

_Function = TypeVar("_Function", bound=Callable[..., object])
_BLANK = re.compile(r"^( *)%\((\w+)\)s$", flags=re.MULTILINE)


def _attributes(owner: type) -> dict[str, str]:
    """Entries of the section "Attributes" of a class's docstring, by name; none without docstrings (python -OO)."""
    _, _, section = (owner.__doc__ or "").partition("Attributes\n")
    lines = [line for line in section.split("\n")[1:] if line.strip()]
    margin = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    entries = re.split(r"\n(?=\w+ : )", "\n".join(line[margin:] for line in lines))
    return {entry.partition(" : ")[0]: entry for entry in entries}


#: Parameter -> its entry in the section "Parameters" of every function that has it.
TEXTS = {
    "data": """\
data : xarray.Dataset
    Terms (:func:`posstats.decompose`) or a dump (:func:`posstats.open_dump`), of whole recordings; every condition in
    it is estimated. A selection of a label, such as ``ds.sel(layer=1)``, serves too.""",
    "dump": """\
data : xarray.Dataset
    A dump (:func:`posstats.open_dump`), not terms, of whole recordings; every condition in it is estimated. A selection
    of a label, such as ``ds.sel(layer=1)``, serves too.""",
    "by": """\
by : sequence of {"layer", "head"}, or one of them
    Dimensions kept apart; the others are summed over.""",
    "order": """\
order : {"shapley", "mask_first", "mask_last"}
    How the number of keys and the reading of position 0, which act together in one denominator, are told apart: the
    mask alone and then the sink, the sink alone and then the mask, or the mean of both.""",
    "octaves": """\
octaves : bool
    Whether to add octave bins of queries to the headline bin "all" (``max offset < i < Q = T/2``).""",
    "offsets": """\
offsets : sequence of int, optional
    Distances i - j from query to key that are summed (averaged) over, each once; all of `data` if not given. The
    largest bounds the analysed queries, ``max offset < i < Q = T/2``.""",
    "layers": """\
layers : sequence of int, optional
    Layers to use, each once; all if not given.""",
    "epsilon": """\
epsilon : float
    Mean attention on position 0 over the queries i >= 16 above which a head is sink-reading, between 0 and 1; 0.3 is
    the threshold of Gu et al. (2025).""",
    "n_folds": """\
n_folds : int
    Folds of the cross-validation, at least 3 and at most one per document; documents are kept whole.""",
} | _attributes(Inference)


def explained(function: _Function) -> _Function:
    """Fill the lines ``%(name)s`` of a function's docstring with the shared text of the parameter `name`.

    Parameters
    ----------
    function : callable
        Without a docstring (``python -OO``) it stays as it is.

    Returns
    -------
    callable
        The same function.
    """

    def fill(blank: re.Match[str]) -> str:
        return "\n".join(blank[1] + line for line in TEXTS[blank[2]].split("\n"))

    if function.__doc__:
        function.__doc__ = _BLANK.sub(fill, function.__doc__)
    return function
