"""The configuration of an analysis: one TOML file, read strictly, with named profiles.

What changes results (`model`, `sequences`, `dumps`, `record`, `inference`, `analyses`) is kept apart from how the work
is done (`run`).
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from posstats.errors import InputError
from posstats.stats.inference.options import Inference
from posstats.study.naming import model_label, one_spelling, own_folder, place_label, plain
from posstats.study.sections import (
    SOURCES,
    AnalysesConfig,
    DumpConfig,
    ModelConfig,
    RecordConfig,
    RunConfig,
    SequencesConfig,
)
from posstats.vocabulary import BASELINE

__all__ = [
    "SECTIONS", "SOURCES", "AnalysesConfig", "AnalysisConfig", "DumpConfig", "ModelConfig",
    "RecordConfig", "RunConfig", "SequencesConfig", "load_config", "options", "profiles",
]  # fmt: skip

_TYPE_NAMES = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}


@dataclass(frozen=True, slots=True)
class AnalysisConfig:
    """A whole configuration: its sections, the dumps by name."""

    model: ModelConfig = field(default_factory=ModelConfig)
    sequences: SequencesConfig = field(default_factory=SequencesConfig)
    dumps: dict[str, DumpConfig] = field(default_factory=dict)
    record: RecordConfig = field(default_factory=RecordConfig)
    inference: Inference = field(default_factory=Inference)
    analyses: AnalysesConfig = field(default_factory=AnalysesConfig)
    run: RunConfig = field(default_factory=RunConfig)
    #: Where the configuration lies; analysis files are looked up there.
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
        parts = [model_label(model.name)]
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
    "inference": Inference,
    "analyses": AnalysesConfig,
    "run": RunConfig,
}


def load_config(
    path: str | Path, profile: str | None = None, model: str | None = None, bos_token: str | int | None = None
) -> AnalysisConfig:
    """Read a configuration; what the TOML file leaves out has its default.

    The tables under ``[profile.NAME]`` replace entries of the sections of the same name; `model` and `bos_token`
    replace the configured ones. Dumps and results of a file that is not called default.toml have a folder of its name
    below those it names, and a model that is a folder or file here has one spelling. Raises InputError if the file
    cannot be read, or has an unknown section or key, a value of the wrong type, or no such profile.
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
    profiles = _table(document.pop("profile", {}), f"[profile] of {path}")
    # By itself first: a mistake in it is not one of the profiles, each of which is checked on top of it.
    sections = _sections(document)
    for name, changes in profiles.items():
        where = f"profile.{name}"
        found = _sections(_merged(document, _table(changes, f"[{where}]")), f"{where}: ")
        if name == profile:
            sections = found
    if profile is not None and profile not in profiles:
        raise InputError(f"{path} has no profile {profile!r}; it has {', '.join(profiles) or 'none'}")
    config = AnalysisConfig(**sections, folder=path.parent)
    if not config.dumps:
        raise InputError(f"{path} names no dump; add one, for example [dumps.random]")
    for name, entry in config.dumps.items():
        if BASELINE not in (entry.conditions or config.record.conditions):
            raise InputError(
                f'the conditions of [dumps.{name}] must contain "{BASELINE}", which the others are compared with'
            )
    run = config.run
    run = replace(run, dumps=own_folder(run.dumps, path), results=own_folder(run.results, path))
    chosen = config.model if model is None else replace(config.model, name=model, revision=None)
    chosen = replace(chosen, name=one_spelling(chosen.name))
    config = replace(config, run=run, model=chosen)
    if bos_token is not None:
        config = replace(config, sequences=replace(config.sequences, bos_token=bos_token))
    return config


def profiles(path: str | Path) -> list[str]:
    """Names of the profiles of a configuration, for completion: none where it cannot be read."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8")).get("profile", {})
    except (OSError, ValueError):
        return []
    return list(found) if isinstance(found, Mapping) else []


def _sections(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    unknown = [name for name in document if name not in SECTIONS]
    if unknown:
        raise InputError(f"{prefix}there is no section [{unknown[0]}]; the sections are {', '.join(SECTIONS)}, profile")
    values: dict[str, Any] = {}
    for name, content in document.items():
        where = f"{prefix}[{name}]"
        if name == "dumps":
            values[name] = {
                label: _section(DumpConfig, _table(entry, f"{prefix}[dumps.{label}]"), f"{prefix}[dumps.{label}]")
                for label, entry in _table(content, where).items()
            }
            for label in values[name]:
                if not re.fullmatch(r"[A-Za-z0-9_-]+", label):
                    raise InputError(f"{where}: a dump's name has letters, digits, - and _ only, not {label!r}")
        else:
            values[name] = _section(SECTIONS[name], _table(content, where), where)
    return values


def options() -> dict[str, Any]:
    """Every option there is, as "section.key", and its default; None where leaving it out has a meaning of its own.

    >>> options()["sequences.n"]
    48
    """
    return {
        f"{section}.{entry.name}": None if entry.default is MISSING else entry.default
        for section, kind in SECTIONS.items()
        for entry in fields(kind)
    }


def _merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; anything else replaced."""
    result = dict(document)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = _merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _table(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it is a table; `where` is what an error calls it."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a table of keys, not {value!r}")
    return value


def _section(kind: type, content: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table of its fields, which it checks itself; `where` is what an error calls the table."""
    allowed = [entry.name for entry in fields(kind)]
    unknown = [key for key in content if key not in allowed]
    if unknown:
        raise InputError(f"{where} has no key {unknown[0]!r}; its keys are {', '.join(allowed)}")
    types = get_type_hints(kind)
    values = {key: _value(value, types[key], f"{where} {key}") for key, value in content.items()}
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _value(value: Any, kind: Any, where: str) -> Any:
    """The value, if it is of its type; lists become tuples and whole numbers floats."""
    allowed = (
        [kind] if get_origin(kind) is tuple else [one for one in get_args(kind) or (kind,) if one is not type(None)]
    )
    for one in allowed:
        if get_origin(one) is tuple and isinstance(value, list):
            return tuple(_value(item, get_args(one)[0], where) for item in value)
        if type(value) is one:
            return value
        if one is float and type(value) is int:
            return float(value)
    described = " or ".join("a list" if get_origin(one) is tuple else _TYPE_NAMES[one] for one in allowed)
    raise InputError(f"{where} must be {described}, not {value!r}")
