"""Which models are compared, and on which sequences. Nothing here needs torch."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posstats.errors import InputError
from posstats.study.config import AnalysisConfig, DumpConfig, ModelConfig, RecordConfig, RunConfig, SequencesConfig
from posstats.study.recording import record_dumps

NTK_FACTORS = (2.0, 4.0, 8.0)
WINDOWS = (32, 64, 128)
#: What takes BOS's place in the contrasts of removal.
REPLACEMENTS = ("bos=mean", "bos=none")
#: What a record beside an adapter is called.
_RECORD = "posstats.json"


@dataclass(frozen=True, slots=True)
class Entry:
    """One model of the comparison.

    Attributes
    ----------
    name : str
        What tables call it.
    architecture : str
        "standard", or what was changed: "ntk-8", "window-64"; of adapted models "standard", "ntk", "window".
    model : ModelConfig
        How it is loaded.
    seed : int or None
        Training run of an adapted model.
    """

    name: str
    architecture: str
    model: ModelConfig
    seed: int | None = None


def variants(base: str, factors: Sequence[float], windows: Sequence[int]) -> list[Entry]:
    """The model as it was trained, then its inference-time variants."""
    entries = [Entry("standard", "standard", ModelConfig(base))]
    entries += [Entry(f"ntk-{f:g}", f"ntk-{f:g}", ModelConfig(base, ntk_factor=f)) for f in factors]
    return entries + [Entry(f"window-{w}", f"window-{w}", ModelConfig(base, sliding_window=w)) for w in windows]


def adapted(base: str, folder: Path) -> list[Entry]:
    """The adapted models whose adapters lie in a folder, architecture by architecture, seed by seed.

    Raises
    ------
    InputError
        If an adapter continues another model.
    """
    entries = []
    for file in sorted(folder.glob(f"*/{_RECORD}")):
        record = json.loads(file.read_text(encoding="utf-8"))
        if record["base_model"] != base:
            raise InputError(f"{file.parent} continues {record['base_model']}, not {base}")
        model = ModelConfig(base, adapter=str(file.parent))
        entries.append(Entry(f"adapted-{file.parent.name}", record["architecture"], model, record["seed"]))
    return sorted(entries, key=lambda entry: (("standard", "ntk", "window").index(entry.architecture), entry.seed or 0))


def dump_path(config: AnalysisConfig, entry: Entry) -> Path:
    """File of a model's dump."""
    return Path(config.run.dumps) / f"{entry.name}.h5"


def record(entries: Sequence[Entry], config: AnalysisConfig, *, show: bool = True) -> None:
    """Record every model on the same sequences; dumps that are there with the same settings are reused.

    Parameters
    ----------
    entries : sequence of Entry
        The models.
    config : AnalysisConfig
        Its `sequences`, `record` and `run` are used.
    show : bool
        Whether to show progress.

    Raises
    ------
    InputError
        If a window would never bind.
    """
    analysed = config.sequences.length // 2
    for entry in entries:
        window = entry.model.sliding_window
        if window is not None and window >= analysed:
            raise InputError(f"{entry.name}: a window of {window} never binds among {analysed} analysed queries")
    for entry in entries:
        dumps = {dump_path(config, entry): DumpConfig()}
        record_dumps(replace(config, model=entry.model), dumps, overwrite=True, show=show)


def design(folder: Path, models: str, *, layer: int | str, quick: bool = False) -> AnalysisConfig:
    """What is recorded: enough for every claim, on sequences longer than every window.

    Parameters
    ----------
    folder : Path
        Of the dumps.
    models : str
        Folder of converted models.
    layer : int or str
        From which layer on the trajectory of position 0 is that of dealt tokens: its number, or a fraction of them,
        such as "1/3".
    quick : bool
        Small sizes: does it run, not what comes out.
    """
    anchor, tokens = (16, 4) if quick else (64, 8)
    conditions = (
        "baseline", *REPLACEMENTS, f"bos@{anchor}", f"bos=tokens:{tokens}", f"trajectory=tokens:{tokens}@{layer}",
        "shift=64", "repeat",
    )  # fmt: skip
    return AnalysisConfig(
        sequences=SequencesConfig(n=8, length=144) if quick else SequencesConfig(),
        record=RecordConfig(conditions, (0, 1, 4) if quick else RecordConfig().offsets),
        run=RunConfig(dumps=str(folder), models=models),
    )
