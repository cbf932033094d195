"""One training run: low-rank adapters on the attention projections, everything else frozen."""

import csv
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file

import posstats as ps
from analyses.train.corpus import Corpus
from posstats.dumping.model.adapters import CONFIG, RECORD, TENSORS, base_digest, peft_wraps
from posstats.dumping.model.checkpoints import weights_digest
from posstats.errors import NumericalError
from posstats.execution.files import replacing
from posstats.execution.progress import progress

#: Architecture -> what of `posstats.load_model` makes it. "standard" is the control: same data, same steps.
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "standard": {},
    "ntk": {"ntk_factor": 8.0},
    "window": {"sliding_window": 64},
}
_LIBRARIES = ("torch", "transformers", "peft", "safetensors", "tokenizers")
#: Sequences of the held-out loss that go through the model at once.
_HELD_OUT_BATCH = 4


@dataclass(frozen=True, slots=True)
class Settings:
    """What a training run depends on besides architecture, seed, model and text.

    Attributes
    ----------
    steps, batch, length : int
        Optimiser steps, sequences per step, tokens per sequence (BOS counted).
    rank, alpha : int
        Of the adapters: W + alpha / rank * B A.
    targets : tuple of str
        Names of the adapted projections.
    learning_rate : float
        Its peak: it grows linearly over `warmup` steps and then falls linearly to 0 after the last.
    warmup : int
    clip : float
        Largest norm of the gradient.
    held_out : int
        Held-out sequences whose loss is taken before and after.
    threads : int
        Threads of torch, on which the order of sums depends.
    """

    steps: int = 50
    batch: int = 4
    length: int = 256
    rank: int = 8
    alpha: int = 16
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    learning_rate: float = 1e-3
    warmup: int = 5
    clip: float = 1.0
    held_out: int = 16
    threads: int = 2


@dataclass(frozen=True, slots=True)
class Run:
    """One training run."""

    architecture: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder."""
        return f"{self.architecture}-{self.seed}"


def train(
    run: Run,
    settings: Settings,
    corpus: Corpus,
    folder: Path,
    base: str,
    models_dir: Path,
    *,
    before: dict[str, float],
    show: bool = True,
) -> None:
    """Train and put a finished folder in place by rename: an interrupted run leaves nothing behind.

    Parameters
    ----------
    run, settings, corpus
        What is done.
    folder : Path
        Where the run's own folder goes.
    base : str
        Model that is continued.
    models_dir : Path
        Folder of converted models.
    before : dict of str to float
        Architecture -> held-out loss before training, which is the same for all of its runs: what is missing is added.
    show : bool
        Whether to show progress.
    """
    torch.set_num_threads(settings.threads)
    torch.use_deterministic_algorithms(True)
    model, tokenizer = ps.load_model(base, device="cpu", models_dir=models_dir, **ARCHITECTURES[run.architecture])
    digest = base_digest(model)
    # The seed decides which crops are read in which order, and how the adapters begin: the same for every
    # architecture, so that the runs of one seed differ in nothing else.
    sequences = ps.text_sequences(
        tokenizer, corpus.train, settings.steps * settings.batch, settings.length, seed=run.seed
    )
    held_out = ps.text_sequences(tokenizer, corpus.held_out, settings.held_out, settings.length, seed=0)
    torch.manual_seed(run.seed)
    config = LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=list(settings.targets), task_type="CAUSAL_LM"
    )
    with peft_wraps():
        adapted = get_peft_model(model, config)
    if run.architecture not in before:
        before[run.architecture] = held_out_loss(adapted, held_out.ids)
    batches = torch.from_numpy(sequences.ids).split(settings.batch)
    with progress(run.name, settings.steps, unit="step", show=show) as bar:
        curve = list(_steps(adapted, batches, settings, bar))
    tensors = rounded(get_peft_model_state_dict(adapted))
    set_peft_model_state_dict(adapted, {name: tensor.float() for name, tensor in tensors.items()})
    after = held_out_loss(adapted, held_out.ids)
    record = {
        "architecture": run.architecture,
        "variant": ARCHITECTURES[run.architecture],
        "seed": run.seed,
        "steps": settings.steps,
        "base_model": base,
        "base_weights_sha256": digest,
        "adapter_sha256": weights_digest(tensors),
        "trained_numbers": sum(tensor.numel() for tensor in tensors.values()),
        "held_out_loss": {
            "before": before[run.architecture],
            "after": after,
            "tokens": held_out.count * (settings.length - 1),
        },
        "training_tokens": sequences.ids.size,
        "bos_token": sequences.bos_token,
        "settings": asdict(settings),
        "text": corpus.facts(),
        "versions": {name: importlib.metadata.version(name) for name in _LIBRARIES}
        | {"posstats": ps.__version__, "python": platform.python_version()},
    }
    _put_in_place(folder / run.name, tensors, _peft_config(config, base), curve, record)


def _steps(
    model: Any, batches: tuple[torch.Tensor, ...], settings: Settings, bar: Any
) -> Iterator[tuple[int, float, float]]:
    """Step, learning rate and loss, one optimiser step after the other."""
    weights = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=settings.learning_rate, weight_decay=0.0)
    model.train()
    for step, ids in enumerate(batches):
        rate = settings.learning_rate * schedule(step, settings)
        for group in optimiser.param_groups:
            group["lr"] = rate
        loss = model(input_ids=ids, labels=ids, use_cache=False).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, settings.clip, error_if_nonfinite=True)
        optimiser.step()
        bar.update()
        yield step, rate, loss.item()
    model.eval()


def schedule(step: int, settings: Settings) -> float:
    """Learning rate of a step as a fraction of its peak: linear warm-up, then linear decay.

    Examples
    --------
    >>> [round(schedule(step, Settings(steps=6, warmup=2)), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]
    """
    left = (settings.steps - step) / max(1, settings.steps - settings.warmup)
    return min((step + 1) / settings.warmup if settings.warmup else 1.0, left, 1.0)


def held_out_loss(model: Any, ids: np.ndarray) -> float:
    """Mean cross-entropy of the next token, nats per token.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        In evaluation mode, or without dropout.
    ids : ndarray of int64, shape (sequence, query)
        Token ids; every token but the first is predicted.
    """
    total = 0.0
    with torch.inference_mode():
        for batch in torch.from_numpy(ids).split(_HELD_OUT_BATCH):
            total += len(batch) * model(input_ids=batch, labels=batch, use_cache=False).loss.item()
    return total / len(ids)


def rounded(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The numbers as they are saved: half precision, which is exact to 3 digits and half as large."""
    half = {name: tensor.detach().to(torch.float16).contiguous() for name, tensor in tensors.items()}
    if not all(torch.isfinite(tensor).all() for tensor in half.values()):
        raise NumericalError("the adapter has numbers that half precision cannot hold")
    return half


def _peft_config(config: LoraConfig, base: str) -> dict[str, Any]:
    """The configuration as peft reads it, with sets in order: the same run gives the same bytes."""
    entries = config.to_dict() | {"base_model_name_or_path": base, "inference_mode": True}
    return {name: sorted(value) if isinstance(value, set) else value for name, value in entries.items()}


def _put_in_place(
    target: Path,
    tensors: dict[str, torch.Tensor],
    config: dict[str, Any],
    curve: list[tuple[int, float, float]],
    record: dict[str, Any],
) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / TENSORS, metadata={"format": "pt"})
        for name, content in ((CONFIG, config), (RECORD, record)):
            (temporary / name).write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        with (temporary / "loss.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("step", "learning_rate", "loss"))
            writer.writerows((step, f"{rate:.6g}", f"{loss:.6g}") for step, rate, loss in curve)
        for file in temporary.iterdir():
            file.chmod(0o644)
