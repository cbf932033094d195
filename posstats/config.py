"""The configuration of an analysis: one TOML file, read strictly, with named profiles.

What changes results (`model`, `sequences`, `dumps`, `record`, `inference`, `analyses`) is kept apart from how the work
is done (`run`).
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from posstats.errors import InputError
from posstats.naming import model_label, own_folder, place_label, plain
from posstats.spelling import parse_conditions
from posstats.strict import merged, section, table
from posstats.vocabulary import BASELINE, DEFAULT_LENGTH, DEFAULT_OFFSETS, DEFAULT_SEQUENCES, MINIMUM_DOCUMENTS

#: Where the tokens of a dump come from.
SOURCES = ("random", "text")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Which model is recorded.

    Attributes
    ----------
    name : str
        "smollm2-135m" (the embedded default model), a local folder, a .gguf file, or a hub id.
    revision : str, optional
        Branch, tag or commit of a hub id.
    dtype : str
        Number format of weights and activations: float32, float64, bfloat16 or float16.
    ntk_factor, sliding_window : float and int, optional
        Inference-time variant: NTK-aware scaling of plain RoPE by this factor, a window of so many keys in every layer.
    adapter : str, optional
        Folder of a low-rank adapter, which brings the architecture that the model was trained on under.
    """

    name: str = "smollm2-135m"
    revision: str | None = None
    dtype: str = "float32"
    ntk_factor: float | None = None
    sliding_window: int | None = None
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class SequencesConfig:
    """The design of the sequences, the same for every dump.

    Attributes
    ----------
    n : int
        Sequences in a dump.
    length : int
        Tokens per sequence, a BOS counted.
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
        if self.length < 2 + self.bos:
            counted = ", the BOS counted" if self.bos else ""
            raise InputError(f"length must be at least {2 + self.bos} tokens{counted}, not {self.length}")
        _check_seed(self.seed)


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
        parse_conditions(self.conditions)
        _check_seed(self.seed)


@dataclass(frozen=True, slots=True)
class InferenceConfig:
    """How estimates are resampled and tested. The resampling unit is the document.

    Attributes
    ----------
    level : float
        Confidence level of intervals.
    method : str, optional
        Interval method; for each estimand the one with the best measured coverage, if not given.
    n_resamples : int
        Bootstrap replicates; a jackknife needs none.
    n_permutations : int
        Sign flips of the leakage test.
    adjust : str
        Adjustment of p-values over a family: bh, by or holm.
    seed : int
        Seed of replicates and sign flips.
    """

    level: float = 0.95
    method: str | None = None
    n_resamples: int = 2000
    n_permutations: int = 9999
    adjust: str = "bh"
    seed: int = 0

    def __post_init__(self) -> None:
        # Here, not above: the command line's help has options from this module, and should not wait for statistics.
        from posstats.pooling import Inference
        from posstats.stats.multiplicity import adjust as adjust_p
        from posstats.stats.resample import DEFAULT_METHOD

        Inference(self.level, self.method or DEFAULT_METHOD, self.n_resamples, self.n_permutations, self.seed)
        adjust_p([], self.adjust)

    def options(self, *without: str) -> dict[str, Any]:
        """Keyword arguments of estimators that resample, test and adjust; some have no use for all of them."""
        options: dict[str, Any] = {
            "level": self.level,
            "n_resamples": self.n_resamples,
            "n_permutations": self.n_permutations,
            "adjust": self.adjust,
            "seed": self.seed,
        }
        if self.method is not None:
            options["method"] = self.method
        return {name: value for name, value in options.items() if name not in without}


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
        if self.workers < 1:
            raise InputError(f"workers must be at least 1, not {self.workers}")
        if self.batch_size is not None and self.batch_size < 1:
            raise InputError(f"batch_size must be at least 1, not {self.batch_size}")


@dataclass(frozen=True, slots=True)
class AnalysisConfig:
    """A whole configuration.

    Attributes
    ----------
    model, sequences, record, inference, analyses, run
        Its sections.
    dumps : dict of str to DumpConfig
        The dumps by name.
    folder : Path
        Where the configuration lies; analysis files are looked up there.
    """

    model: ModelConfig = field(default_factory=ModelConfig)
    sequences: SequencesConfig = field(default_factory=SequencesConfig)
    dumps: dict[str, DumpConfig] = field(default_factory=dict)
    record: RecordConfig = field(default_factory=RecordConfig)
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    analyses: AnalysesConfig = field(default_factory=AnalysesConfig)
    run: RunConfig = field(default_factory=RunConfig)
    folder: Path = Path()

    def dump_path(self, name: str) -> Path:
        """File of a dump."""
        return Path(self.run.dumps) / f"{self.slug}-{name}.h5"

    def results_folder(self) -> Path:
        """Folder of the results of this model."""
        return Path(self.run.results) / self.slug

    @property
    def slug(self) -> str:
        """The model's name, with what was changed in it and the BOS token chosen for it, as part of a file name."""
        model, token = self.model, self.sequences.bos_token
        parts = [model_label(model.name, ModelConfig().name)]
        parts += [] if model.ntk_factor is None else [f"ntk-{model.ntk_factor:g}"]
        parts += [] if model.sliding_window is None else [f"window-{model.sliding_window}"]
        parts += [] if model.adapter is None else [f"adapted-{place_label(Path(model.adapter))}"]
        parts += [] if token is None else [f"bos-{plain(str(token))}"]
        return "-".join(parts)


#: Section -> its class; `dumps` holds one table per dump.
SECTIONS: dict[str, type] = {
    "model": ModelConfig,
    "sequences": SequencesConfig,
    "dumps": DumpConfig,
    "record": RecordConfig,
    "inference": InferenceConfig,
    "analyses": AnalysesConfig,
    "run": RunConfig,
}


def load_config(path: str | Path, profile: str | None = None, model: str | None = None) -> AnalysisConfig:
    """Read a configuration.

    Parameters
    ----------
    path : str or Path
        The TOML file.
    profile : str, optional
        Name of a profile: the tables under ``[profile.NAME]`` replace entries of the sections of the same name.
    model : str, optional
        A model to use in place of the configured one.

    Returns
    -------
    AnalysisConfig
        Checked values; what the file leaves out has its default. Dumps and results of a file that is not called
        default.toml have a folder of its name below those it names.

    Raises
    ------
    InputError
        If the file cannot be read, or has an unknown section or key, a value of the wrong type, or no such profile.
    """
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(
            f"cannot read the configuration {path}: {error.strerror}; it says what is recorded and which questions are "
            "asked, of dumps that are named too: name one that is there (--config), such as analyses/default.toml of "
            "a clone of the repository"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path} is not valid TOML: {error}") from error
    profiles = table(document.pop("profile", {}), f"[profile] of {path}")
    chosen: Mapping[str, Any] = {}
    for name, changes in profiles.items():
        where = f"profile.{name}"
        if name == profile:
            chosen = table(changes, f"[{where}]")
        else:
            _sections(merged(document, table(changes, f"[{where}]")), f"{where}: ")
    if profile is not None and profile not in profiles:
        raise InputError(f"{path} has no profile {profile!r}; it has {', '.join(profiles) or 'none'}")
    config = AnalysisConfig(**_sections(merged(document, chosen)), folder=path.parent)
    if not config.dumps:
        raise InputError(f"{path} names no dump; add one, for example [dumps.random]")
    for name, entry in config.dumps.items():
        if BASELINE not in (entry.conditions or config.record.conditions):
            raise InputError(
                f'the conditions of [dumps.{name}] must contain "{BASELINE}", which the others are compared with'
            )
    run = config.run
    run = replace(run, dumps=own_folder(run.dumps, path), results=own_folder(run.results, path))
    config = replace(config, run=run)
    return config if model is None else replace(config, model=replace(config.model, name=model, revision=None))


def _check_seed(seed: int) -> None:
    if seed < 0:
        raise InputError(f"seed must be 0 or more, not {seed}")


def _sections(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    unknown = [name for name in document if name not in SECTIONS]
    if unknown:
        raise InputError(f"{prefix}there is no section [{unknown[0]}]; the sections are {', '.join(SECTIONS)}, profile")
    values: dict[str, Any] = {}
    for name, content in document.items():
        where = f"{prefix}[{name}]"
        if name == "dumps":
            values[name] = {
                label: section(DumpConfig, table(entry, f"{prefix}[dumps.{label}]"), f"{prefix}[dumps.{label}]")
                for label, entry in table(content, where).items()
            }
            for label in values[name]:
                if not re.fullmatch(r"[A-Za-z0-9_-]+", label):
                    raise InputError(f"{where}: a dump's name has letters, digits, - and _ only, not {label!r}")
        else:
            values[name] = section(SECTIONS[name], table(content, where), where)
    return values


def options() -> dict[str, Any]:
    """Every option there is, as "section.key", and its default.

    Returns
    -------
    dict
        Option -> default value; None where leaving it out has a meaning of its own.

    Examples
    --------
    >>> options()["sequences.n"]
    48
    """
    return {
        f"{section}.{entry.name}": None if entry.default is MISSING else entry.default
        for section, kind in SECTIONS.items()
        for entry in fields(kind)
    }
