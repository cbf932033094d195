"""Interventions on the input, and one on the trajectory of position 0 (docs/method.md, section 6).

Every condition keeps the sequences paired with the baseline: the same sequences in the same order, changed only where
the condition says so. Whatever is drawn is drawn per sequence or document from the seed, so neither the batch size nor
the other conditions of a dump matter. Replaced embeddings are in the units of the embedding module's own output.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from posstats.dataset.conditions import Condition
from posstats.dumping.inputs.sequences import Sequences
from posstats.dumping.model.load import embed
from posstats.dumping.recorder.forward import Substitute
from posstats.dumping.recorder.structure import text_config
from posstats.errors import InputError

#: Stands in ``token_id`` where the model was fed a vector that is no token's embedding.
NO_TOKEN = -1

#: Kinds that feed a vector which is no token's embedding.
_BOS_VECTORS = ("zero", "mean", "gaussian")
#: Kinds that replace the trajectory of position 0.
_SUBSTITUTED = ("trajectory", "trajectories")
#: Spawn keys that keep the draws of the conditions apart under one seed.
_ORDINARY, _GAUSSIAN, _DEALT = 0, 1, 2
#: Tokens embedded at a time when the moments of the embedding are summed: bounds the memory.
_EMBEDDED_AT_ONCE = 4096


def fed_tokens(condition: Condition, sequences: Sequences, *, seed: int = 0) -> np.ndarray:
    """Token ids that a condition feeds.

    ``bos=none`` and ``bos@P`` put the same ordinary token at position 0, another one in every sequence.

    Parameters
    ----------
    condition : Condition
        The condition.
    sequences : Sequences
        The sequences it is applied to.
    seed : int
        Seed of the ordinary tokens that replace a BOS.

    Returns
    -------
    ndarray of int64, shape (sequence, token)
        Ids, -1 where a vector is fed that is no token's embedding.

    Raises
    ------
    InputError
        If the condition cannot be applied to these sequences.
    """
    ids = sequences.ids.copy()
    if condition.kind in ("baseline", "shift", *_SUBSTITUTED):
        return ids
    if condition.kind == "repeat":
        if sequences.bos_id is not None and sequences.length == 1:
            raise InputError("repeat repeats the token behind the BOS, and these sequences hold nothing but their BOS")
        ids[:] = ids[:, [0 if sequences.bos_id is None else 1]]
        return ids
    if sequences.bos_id is None:
        raise InputError(f"{condition.name} replaces or moves a BOS token, and these sequences have none in their ids")
    if condition.kind in _BOS_VECTORS:
        ids[:, 0] = NO_TOKEN
    elif condition.kind == "token":
        ids[:, 0] = condition.value
    elif condition.kind == "tokens":
        ids[:, 0] = _dealt(condition, sequences, seed)
    else:
        if condition.kind == "at":
            if condition.value >= sequences.length:
                raise InputError(f"{condition.name}: the position must be below the length of {sequences.length}")
            ids[:, condition.value] = sequences.bos_id
        needs = f"a different ordinary token for each of the {sequences.count} sequences"
        ids[:, 0] = _ordinary(condition, sequences, sequences.count, needs, (seed, _ORDINARY))
    return ids


def substituted_tokens(condition: Condition, sequences: Sequences, *, seed: int = 0) -> np.ndarray:
    """Return the token of every sequence that replaces the trajectory of position 0, int64; -1 where none does.

    Raises InputError if there are too few ordinary tokens, or documents, to deal them.
    """
    if condition.kind == "trajectories":
        return _dealt(condition, sequences, seed)
    return np.full(sequences.count, condition.value if condition.kind == "trajectory" else NO_TOKEN)


def _ordinary(
    condition: Condition, sequences: Sequences, count: int, needs: str, stream: tuple[int, int]
) -> np.ndarray:
    """Different ordinary tokens, drawn from a seed and a spawn key; of more, these are the first."""
    if len(sequences.ordinary) < count:
        raise InputError(
            f"{condition.name} needs {needs}, and the sequences name {len(sequences.ordinary)} (their attribute "
            "`ordinary`)"
        )
    seed, key = stream
    rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(key,)))
    return rng.permutation(sequences.ordinary)[:count]


def _dealt(condition: Condition, sequences: Sequences, seed: int) -> np.ndarray:
    """One of K ordinary tokens per sequence, dealt in turn to the documents in the order in which they appear."""
    count = condition.value
    if 2 * count > sequences.documents:
        raise InputError(
            f"{condition.name}: every token must come back in another document, so K can be at most "
            f"{sequences.documents // 2} with {sequences.documents} documents"
        )
    tokens = _ordinary(condition, sequences, count, f"{count} ordinary tokens", (seed, _DEALT))
    _, first, code = np.unique(sequences.document, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first))[code]
    return tokens[number % count]


def check_condition(condition: Condition, token_id: np.ndarray, substitute_id: np.ndarray, model: Any) -> None:
    """Check that a model can be fed a condition.

    Parameters
    ----------
    condition : Condition
        The condition.
    token_id, substitute_id : ndarray of int64
        What it feeds, as of :func:`fed_tokens` and :func:`substituted_tokens`.
    model : transformers.PreTrainedModel
        The model.

    Raises
    ------
    InputError
        If a token id is not in its vocabulary, or it has no such block.
    """
    vocabulary, blocks = _vocabulary(model), text_config(model).num_hidden_layers
    largest = max(int(token_id.max()), int(substitute_id.max()))
    if largest >= vocabulary:
        raise InputError(
            f"{condition.name}: token id {largest} is not in the model's vocabulary of {vocabulary} tokens; choose an "
            f"id from 0 to {vocabulary - 1}"
        )
    if condition.fraction is not None:
        raise InputError(f"{condition.name}: the depth has to be worked out for the model's blocks first (at_depth)")
    if condition.depth >= blocks:
        raise InputError(
            f"{condition.name}: the depth must be 0 .. {blocks - 1}, as the model has {blocks} blocks, or a fraction "
            "of them, such as 1/3"
        )


@dataclass(frozen=True, slots=True)
class Feed:
    """A condition made ready for a model.

    Attributes
    ----------
    token_id : ndarray of int64, shape (sequence, token)
        What is fed; -1 where it is the replacement.
    replacement : Tensor of shape (sequence, hidden) or None
        What stands at position 0 in place of an embedding, in the units of the embedding module's output.
    shift : int
        Added to every position id.
    anchor : int or None
        Position P of the BOS token under ``bos@P``.
    substitute : Substitute or None
        What takes the place of the trajectory of position 0, sequence by sequence.
    """

    token_id: np.ndarray
    replacement: torch.Tensor | None = None
    shift: int = 0
    anchor: int | None = None
    substitute: Substitute | None = None

    def batch(self, model: Any, rows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Model input of some sequences.

        Parameters
        ----------
        model : transformers.PreTrainedModel
            The model.
        rows : slice
            Which sequences.

        Returns
        -------
        inputs_embeds : Tensor of shape (sequence, token, hidden)
            Output of the embedding module, position 0 replaced where the condition says so.
        position_ids : Tensor of int64, shape (sequence, token)
            Position ids.
        """
        ids = torch.as_tensor(np.maximum(self.token_id[rows], 0), device=model.device)
        inputs_embeds = embed(model, ids)
        if self.replacement is not None:
            replaced = self.replacement[rows].to(inputs_embeds)
            inputs_embeds = torch.cat([replaced[:, None], inputs_embeds[:, 1:]], dim=1)
        position_ids = torch.arange(ids.shape[1], device=model.device) + self.shift
        return inputs_embeds, position_ids.expand_as(ids)

    def substitutes(self, rows: slice) -> Substitute | None:
        """What takes the place of the trajectory of position 0 in some sequences."""
        return self.substitute and replace(self.substitute, embedding=self.substitute.embedding[rows])


def apply(condition: Condition, sequences: Sequences, model: Any, *, seed: int = 0) -> Feed:
    """Apply a condition to sequences.

    Parameters
    ----------
    condition : Condition
        What to do.
    sequences : Sequences
        What to do it to.
    model : transformers.PreTrainedModel
        The model whose embedding is used.
    seed : int
        Seed of the draws of ``bos=gaussian``, ``bos=none``, ``bos@P`` and dealt tokens.

    Returns
    -------
    Feed
        The input, ready to be cut into batches.

    Raises
    ------
    InputError
        If the condition cannot be applied, a token id is not in the model's vocabulary, or it has no such block.

    Notes
    -----
    ``bos=gaussian`` draws, per sequence, independent normal values with the mean and the standard deviation that the
    embeddings of the vocabulary have along each hidden dimension; ``bos=mean`` is that mean.
    """
    token_id, substitute_id = (of(condition, sequences, seed=seed) for of in (fed_tokens, substituted_tokens))
    check_condition(condition, token_id, substitute_id, model)
    if condition.kind in _SUBSTITUTED:
        embedding = embed(model, torch.from_numpy(substitute_id)[None])[0]
        return Feed(token_id, substitute=Substitute(embedding, condition.depth))
    if condition.kind == "at":
        return Feed(token_id, anchor=condition.value)
    replacement = None
    if condition.kind in _BOS_VECTORS:
        mean, deviation = _embedding_moments(model)
        if condition.kind == "zero":
            vectors = np.zeros((sequences.count, len(mean)))
        elif condition.kind == "mean":
            vectors = np.tile(mean, (sequences.count, 1))
        else:
            children = [np.random.SeedSequence(seed, spawn_key=(_GAUSSIAN, n)) for n in range(sequences.count)]
            normal = np.stack([np.random.default_rng(child).standard_normal(len(mean)) for child in children])
            vectors = mean + deviation * normal
        replacement = torch.from_numpy(vectors)
    return Feed(token_id, replacement, shift=condition.value if condition.kind == "shift" else 0)


def _vocabulary(model: Any) -> int:
    """Number of tokens that have an embedding."""
    return int(model.get_input_embeddings().weight.shape[0])


def _embedding_moments(model: Any) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over the vocabulary of the embedding module's output, each of shape (hidden,)."""
    vocabulary = _vocabulary(model)
    total: np.ndarray | float = 0.0
    squares: np.ndarray | float = 0.0
    for start in range(0, vocabulary, _EMBEDDED_AT_ONCE):
        ids = torch.arange(start, min(start + _EMBEDDED_AT_ONCE, vocabulary), device=model.device)
        rows = embed(model, ids[None])[0].cpu().double().numpy()
        total, squares = total + rows.sum(axis=0), squares + (rows**2).sum(axis=0)
    mean = np.asarray(total) / vocabulary
    return mean, np.sqrt(np.maximum(np.asarray(squares) / vocabulary - mean**2, 0.0))
