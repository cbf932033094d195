"""Token sequences to feed: iid random tokens, crops of text, or one token repeated.

A BOS token is in the ids or it is not, and :attr:`Sequences.bos` says which: nothing is prepended behind the user's
back, and tokenizers that prepend a BOS themselves are kept from doing so, hence it is never there twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from posstats.arguments import flag, seed_of, several, shown, whole_number
from posstats.dumping.inputs.corpus import Crops, read_texts
from posstats.dumping.inputs.labels import check_text, document_labels
from posstats.dumping.inputs.tokens import check_tokenizer, choose_bos, ordinary_beside, ordinary_tokens
from posstats.errors import FewDocumentsWarning, InputError
from posstats.execution.machine import free_memory
from posstats.vocabulary import DEFAULT_LENGTH, DEFAULT_SEQUENCES, MINIMUM_DOCUMENTS, analysed_half

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Spawn keys that keep the random streams of the three generators apart under one user seed.
_RANDOM, _TEXT, _REPEAT = range(3)


@dataclass(frozen=True, eq=False)
class Sequences:
    """Token sequences of one length, each labelled with the document it was cut from.

    Parameters
    ----------
    ids : ndarray of int64, shape (sequence, token)
        Token ids, exactly as they will be fed.
    document : ndarray, shape (sequence,)
        Label of the document of each sequence, the resampling unit of every interval: all strings or all integers.
    source : str, optional
        One line on where the sequences come from and what was left out.
    bos_id : int or None
        Id of the BOS token where one stands at position 0 of every sequence; None where there is none.
    bos_token : str
        Its spelling; empty where there is none.
    ordinary : ndarray of int64, one-dimensional
        Ids of the ordinary tokens of the vocabulary: no special, added or reserved one. The conditions ``bos=none``
        and ``bos@P`` draw from them.
    seed : int or None
        The seed the sequences were drawn with; None where nothing was drawn.

    Raises
    ------
    InputError
        If the shapes disagree, an id is negative, no integer or beyond 64 bits, ``bos_id`` does not stand once at the
        start, labels are neither strings nor integers, or a text or the seed is none that a dump can hold.

    Examples
    --------
    >>> mine = Sequences(np.arange(12).reshape(2, 6), document=np.array(["a", "b"]), source="counting")
    >>> mine.count, mine.length, mine.bos
    (2, 6, 'none')
    """

    ids: np.ndarray
    document: np.ndarray
    source: str = "given token ids"
    bos_id: int | None = None
    bos_token: str = ""
    ordinary: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    seed: int | None = None

    def __post_init__(self) -> None:
        ids = _token_ids(
            "token ids must be a non-empty array of integers >= 0 with dims (sequence, token)", self.ids, 2
        )
        ordinary = _token_ids("ordinary must be different integers >= 0 in one dimension", self.ordinary, 1)
        document = document_labels(self.document, len(ids))
        check_text("source", self.source)
        check_text("bos_token", self.bos_token)
        values: dict[str, Any] = {"ids": ids, "document": document, "ordinary": ordinary}
        if self.seed is not None:
            values["seed"] = seed_of(self.seed)
        if self.bos_id is not None:
            values["bos_id"] = whole_number("bos_id", self.bos_id)
            if not (ids[:, 0] == self.bos_id).all():
                raise InputError(f"bos_id is {self.bos_id}, but not every sequence begins with that token")
            if ids.shape[1] > 1 and (ids[:, 1] == self.bos_id).all():
                raise InputError(f"the BOS token {self.bos_id} stands twice at the start of every sequence")
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def count(self) -> int:
        """Number of sequences."""
        return self.ids.shape[0]

    @property
    def length(self) -> int:
        """Tokens per sequence, a BOS in the ids counted."""
        return self.ids.shape[1]

    @property
    def bos(self) -> str:
        """``"in ids"`` where a BOS token stands at position 0 of every sequence, else ``"none"``."""
        return "none" if self.bos_id is None else "in ids"

    @property
    def documents(self) -> int:
        """Number of different documents."""
        return len(np.unique(self.document))

    def __repr__(self) -> str:
        bos = f"BOS {self.bos_token!r} ({self.bos_id}) in the ids" if self.bos_id is not None else "no BOS"
        return f"<Sequences: {self.count} x {self.length} tokens, {self.documents} documents, {bos}; {self.source}>"


def _token_ids(message: str, given: Any, dims: int) -> np.ndarray:
    """Ids as int64, those of ordinary tokens, which have one dim, each once; the message says what is allowed."""
    try:
        ids = np.asarray(given)
    except Exception as error:  # what is no array can refuse to become one in any way: ragged lists, other devices
        raise InputError(f"{message}, not {shown(given)}") from error
    if dims == 1 and ids.size == 0:
        return np.empty(0, dtype=np.int64)
    if ids.ndim != dims or ids.size == 0 or not np.issubdtype(ids.dtype, np.integer):
        raise InputError(f"{message}, not of shape {ids.shape} and type {ids.dtype}")
    if ids.min() < 0 or ids.max() >= 2**63 or (dims == 1 and len(np.unique(ids)) < ids.size):
        raise InputError(f"{message}; these run from {ids.min()} to {ids.max()}")
    return ids.astype(np.int64)


def _check_design(tokenizer: Any, n: Any, length: Any, bos: Any = False) -> tuple[int, int, bool]:
    """What every generator of sequences is given."""
    check_tokenizer(tokenizer)
    n, length, bos = whole_number("n", n, 1), whole_number("length", length), flag("bos", bos)
    if (free := free_memory()) < 8 * n * length:
        raise InputError(
            f"{shown(n)} sequences of {shown(length)} tokens do not fit into the memory: at most {free // 8} tokens do"
        )
    analysed_half(length)
    return n, length, bos


def _generator(seed: Any, stream: int) -> np.random.Generator:
    seed = seed_of(seed)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream,)))


def _labels(kind: str, seed: int, n: int) -> np.ndarray:
    """Labels of documents that were drawn: those of different seeds differ, so that their dumps can be joined.

    They sort as they were drawn.
    """
    width = max(5, len(str(n - 1)))
    return np.array([f"{kind} {seed}-{number:0{width}d}" for number in range(n)])


def random_sequences(
    tokenizer: PreTrainedTokenizerBase,
    n: int = DEFAULT_SEQUENCES,
    length: int = DEFAULT_LENGTH,
    *,
    bos: bool = True,
    bos_token: str | int | None = None,
    seed: int = 0,
) -> Sequences:
    """Sequences of independent tokens, drawn uniformly from the ordinary tokens of the vocabulary.

    Each sequence is its own document, labelled by seed and number ("random 0-00012"), so that sequences of different
    seeds can be put together. Special, added and reserved tokens are never drawn (:func:`ordinary_tokens`). With one
    seed, sequences with and without BOS differ at position 0 only.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Tokenizer of the model that will read the sequences.
    n : int
        Number of sequences.
    length : int
        Tokens per sequence, the BOS counted: a multiple of 4.
    bos : bool
        Whether a BOS token stands at position 0.
    bos_token : str or int, optional
        Which token that is, where the tokenizer's own choice is not the wanted one.
    seed : int
        Seed of the draw.

    Returns
    -------
    Sequences
        `n` sequences of `length` tokens.

    Raises
    ------
    InputError
        If the tokenizer is none of transformers, or has no BOS token and none is chosen, or an option is of another
        type or out of range.

    Examples
    --------
    With the tokenizer of a model (:func:`posstats.load_model`):

    >>> sequences = random_sequences(tokenizer, n=6, length=24, seed=3)
    >>> sequences.ids.shape, sequences.bos, str(sequences.document[5])
    ((6, 24), 'in ids', 'random 3-00005')
    """
    n, length, bos = _check_design(tokenizer, n, length, bos)
    bos_id, spelling = choose_bos(tokenizer, bos, bos_token)
    ordinary = ordinary_beside(tokenizer, bos_id)
    ids = _generator(seed, _RANDOM).choice(ordinary, size=(n, length))
    if bos_id is not None:
        ids[:, 0] = bos_id
    source = f"iid tokens, uniform over the {len(ordinary)} ordinary tokens of the vocabulary"
    return Sequences(ids, _labels("random", seed, n), source, bos_id, spelling, ordinary, seed)


def repeat_sequences(
    tokenizer: PreTrainedTokenizerBase, n: int = DEFAULT_SEQUENCES, length: int = DEFAULT_LENGTH, *, seed: int = 0
) -> Sequences:
    """Sequences that hold one ordinary token at every position, position 0 included.

    Hidden states are then equal at all positions (Gu et al., arXiv:2410.10781), so every residual-stream term is 0: a
    known answer. There is no BOS. Each sequence has its own token and is its own document.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Tokenizer of the model that will read the sequences.
    n : int
        Number of sequences, at most the number of ordinary tokens.
    length : int
        Tokens per sequence: a multiple of 4.
    seed : int
        Seed of the draw.

    Returns
    -------
    Sequences
        `n` sequences of `length` tokens.

    Raises
    ------
    InputError
        If the tokenizer is none of transformers, or a number of another type or out of range.

    Examples
    --------
    >>> sequences = repeat_sequences(tokenizer, n=6, length=24)
    >>> bool((sequences.ids == sequences.ids[:, :1]).all()), sequences.documents
    (True, 6)
    """
    n, length, _ = _check_design(tokenizer, n, length)
    ordinary = ordinary_tokens(tokenizer)
    if n > len(ordinary):
        raise InputError(f"n = {n} sequences need as many different tokens; the vocabulary has {len(ordinary)}")
    tokens = _generator(seed, _REPEAT).permutation(ordinary)[:n]
    ids = np.repeat(tokens[:, None], length, axis=1)
    document = _labels("repeat", seed, n)
    return Sequences(ids, document, "one ordinary token at every position", ordinary=ordinary, seed=seed)


def text_sequences(
    tokenizer: PreTrainedTokenizerBase,
    source: str | Path | Mapping[str, str] | Iterable[str] | None = None,
    n: int = DEFAULT_SEQUENCES,
    length: int = DEFAULT_LENGTH,
    *,
    bos: bool = True,
    bos_token: str | int | None = None,
    seed: int = 0,
) -> Sequences:
    """Random crops of text, each labelled with its document.

    Documents are visited in random order and give one crop each until there are `n`; only when all have been visited
    do they give a second one, so the crops spread over as many documents as there can be. A text too short for a crop
    is left out, and :attr:`Sequences.source` says how many were. Special tokens spelled in a text are read as plain
    characters where the tokenizer can do so.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        Tokenizer of the model that will read the sequences.
    source : str, Path, list of str or mapping of str to str, optional
        By default the topics of Python's own help (``pydoc_data.topics``), each one a document. Otherwise a folder
        (every file in it is a document), a ``.jsonl`` file (one object with ``"text"`` a line, each line a document
        unless it names its ``"document"``), any other file (a single document), texts by document label, or a list of
        texts, each a document.
    n : int
        Number of sequences.
    length : int
        Tokens per sequence, the BOS counted: a multiple of 4.
    bos : bool
        Whether a BOS token stands at position 0.
    bos_token : str or int, optional
        Which token that is, where the tokenizer's own choice is not the wanted one.
    seed : int
        Seed of the choice of documents and crops.

    Returns
    -------
    Sequences
        `n` sequences of `length` tokens; ``document`` holds topic names, file names relative to the folder, line
        numbers, the given labels, or "text 0", "text 1" and so on for a list.

    Raises
    ------
    InputError
        As :func:`random_sequences`; or if the source cannot be read, or its texts are too few or too short for `n`
        different crops.

    Warns
    -----
    FewDocumentsWarning
        If the crops come from fewer documents than any interval can be computed from.

    Examples
    --------
    >>> texts = {f"story {k}": "w5 w17 w8 w40 " * (20 + k) for k in range(6)}
    >>> sequences = text_sequences(tokenizer, texts, n=12, length=24)
    >>> sequences.count, sequences.documents
    (12, 6)
    """
    n, length, bos = _check_design(tokenizer, n, length, bos)
    bos_id, spelling = choose_bos(tokenizer, bos, bos_token)
    name, texts = read_texts(source)
    rng = _generator(seed, _TEXT)
    size = length - (bos_id is not None)

    crops = Crops(size, rng)
    visited = short = 0
    for index in rng.permutation(len(texts)):
        if crops.documents == n:
            break
        label, text = texts[index]
        tokens = tokenizer(text, add_special_tokens=False, split_special_tokens=True, verbose=False)["input_ids"]
        visited += 1
        short += not crops.offer(label, np.asarray(tokens, dtype=np.int64))
    document, ids = crops.draw(n, name, short)
    if bos_id is not None:
        ids = np.insert(ids, 0, bos_id, axis=1)

    found = len(set(document))
    summary = f"{name}: random crops of {found} documents; {visited} of {len(texts)} texts were read"
    if short:
        summary += f", {short} of them too short for {size} tokens and left out"
    if found < MINIMUM_DOCUMENTS:
        warnings.warn(
            f"the {n} sequences come from {found} document(s); intervals rest on documents and need at least "
            f"{MINIMUM_DOCUMENTS}: give a folder of text files or a .jsonl file",
            FewDocumentsWarning,
            stacklevel=2,
        )
    return Sequences(
        ids, np.array(document, object), summary, bos_id, spelling, ordinary_beside(tokenizer, bos_id), seed
    )


def as_sequences(sequences: Any, document: Any, tokenizer: Any, *, longest: int | None, seed: int) -> Sequences:
    """Sequences out of what :func:`posstats.dump` takes for them.

    Parameters
    ----------
    sequences : Sequences, array_like of int with dims (sequence, query), iterable of str, or mapping of str to str
        Sequences, token ids, or texts, each a document.
    document : array_like or None
        Labels of the documents of token ids.
    tokenizer : PreTrainedTokenizerBase or None
        The tokenizer, which texts need.
    longest : int or None
        Tokens that the model allows.
    seed : int
        Seed of crops of text.

    Returns
    -------
    Sequences
        What to feed.

    Raises
    ------
    InputError
        If it is something else, labels are missing or too many, or texts have no tokenizer or are too short.
    """
    kinds = "posstats.Sequences, token ids with dims (sequence, query), or texts"
    if not isinstance(sequences, Sequences | Mapping) and getattr(sequences, "ndim", 1) == 1:
        sequences = several("sequences", sequences, f"what to feed ({kinds})")
    texts = isinstance(sequences, list) and any(isinstance(text, str) for text in sequences)
    if not (texts or isinstance(sequences, Sequences | Mapping)):
        if document is None:
            raise InputError("token ids need document=, a label per sequence: intervals rest on documents")
        return Sequences(sequences, document)
    if document is not None:
        raise InputError("document= goes with an array of token ids only: sequences and texts have documents already")
    if isinstance(sequences, Sequences):
        return sequences
    if tokenizer is None:
        raise InputError("texts need tokenizer=, the tokenizer of the model")
    return text_sequences(tokenizer, sequences, length=min(DEFAULT_LENGTH, longest or DEFAULT_LENGTH), seed=seed)
