"""The sections of a configuration, each a dataclass that checks itself."""

from dataclasses import dataclass

from posstats.arguments import seed_of, whole_number
from posstats.dataset.conditions import parse_conditions
from posstats.dumping.run.options import RecordOptions
from posstats.errors import InputError
from posstats.vocabulary import (
    BASELINE,
    DEFAULT_LENGTH,
    DEFAULT_MODEL,
    DEFAULT_OFFSETS,
    DEFAULT_SEQUENCES,
    MINIMUM_DOCUMENTS,
    analysed_half,
)

#: Where the tokens of a dump come from.
SOURCES = ("random", "text")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is recorded.

    Attributes
    ----------
    name : str
        "smollm2-135m" (the embedded default model), "gemma3-270m" (after `make gemma`), a local folder, a .gguf
        file, or a hub id.
    revision : str, optional
        Branch, tag or commit of a hub id.
    dtype : str
        Number format of weights and activations: float32, float64, bfloat16 or float16.
    ntk_factor, sliding_window : float and int, optional
        Inference-time variant: NTK-aware scaling of plain RoPE by this factor, a window of so many keys in every layer.
    adapter : str, optional
        Folder of a low-rank adapter, which brings the architecture that the model was trained on under.
    untrained : int, optional
        Seed of the initialisation that takes the place of the weights.
    """

    name: str = DEFAULT_MODEL
    revision: str | None = None
    dtype: str = "float32"
    ntk_factor: float | None = None
    sliding_window: int | None = None
    adapter: str | None = None
    untrained: int | None = None


@dataclass(frozen=True, slots=True)
class SequencesConfig:
    """The design of the sequences, the same for every dump.

    Attributes
    ----------
    n : int
        Sequences in a dump.
    length : int
        Tokens per sequence, a BOS counted: a multiple of 4.
    bos : bool
        Whether a BOS token stands at position 0.
    bos_token : str or int, optional
        Which token that is, where the tokenizer's own choice is not wanted.
    seed : int
        Seed of the tokens or crops.
    """

    n: int = DEFAULT_SEQUENCES
    length: int = DEFAULT_LENGTH
    bos: bool = True
    bos_token: str | int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n < MINIMUM_DOCUMENTS:
            raise InputError(
                f"n = {self.n} sequences cannot come from enough documents: every interval rests on documents, and at "
                f"least {MINIMUM_DOCUMENTS} are needed"
            )
        if self.bos_token is not None and not self.bos:
            raise InputError(
                f"bos_token = {self.bos_token!r} was given and bos = false asks for none: drop one of them"
            )
        analysed_half(self.length)
        seed_of(self.seed)


@dataclass(frozen=True, slots=True)
class DumpConfig:
    """One dump: `[dumps.NAME]`.

    Attributes
    ----------
    source : str
        "random" (iid tokens) or "text".
    text : str, optional
        For text: a folder, a .jsonl file or a text file; Python's own help topics if not given.
    conditions : tuple of str, optional
        Interventions on the input in place of those of `record`.
    """

    source: str = "random"
    text: str | None = None
    conditions: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise InputError(f"source must be one of {', '.join(SOURCES)}, not {self.source!r}")
        if self.text is not None and self.source != "text":
            raise InputError(
                f'text ({self.text}) is of use only where source is "text" (source = "text", or --source text), not '
                f"{self.source!r}"
            )
        if self.conditions is not None:
            parse_conditions(self.conditions)


@dataclass(frozen=True, slots=True)
class RecordConfig:
    """What is recorded of every dump.

    Attributes
    ----------
    conditions : tuple of str
        Interventions on the input, one forward pass each.
    offsets : tuple of int
        Distances from query to key at which logits are kept and analysed.
    seed : int
        Seed of what conditions draw.
    """

    conditions: tuple[str, ...] = (BASELINE,)
    offsets: tuple[int, ...] = DEFAULT_OFFSETS
    seed: int = 0

    def __post_init__(self) -> None:
        RecordOptions(self.conditions, self.offsets, seed=self.seed)


@dataclass(frozen=True, slots=True)
class AnalysesConfig:
    """Which questions are asked.

    Attributes
    ----------
    files : tuple of str
        Analysis files beside the configuration, run in this order.
    """

    files: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunConfig:
    """How the work is done; nothing here changes a number.

    Attributes
    ----------
    dumps : str
        Folder of the dumps.
    results : str
        Folder of the results.
    models : str
        Folder of converted models.
    device : str, optional
        Torch device; a GPU if there is one, if not given.
    batch_size : int, optional
        Sequences per forward pass; what the memory allows, if not given.
    workers : int
        Analyses computed at once, each in a process of its own.
    """

    dumps: str = "data"
    results: str = "analyses/results"
    models: str = "data/models"
    device: str | None = None
    batch_size: int | None = None
    workers: int = 2

    def __post_init__(self) -> None:
        whole_number("workers", self.workers, 1)
        RecordOptions(batch_size=self.batch_size)
