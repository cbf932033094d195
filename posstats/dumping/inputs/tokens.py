"""Tokens of a vocabulary: which are ordinary, and which one is the BOS."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from posstats.arguments import shown, whole_number
from posstats.errors import InputError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

#: Vocabulary entries that were reserved and never trained: ``<unused12>``, ``[unused3]``, ``<|reserved_token_7|>``.
_UNUSED = re.compile(r"[<\[].*(unused|reserved|extra_id|placeholder|dummy).*[>\]]", re.IGNORECASE)


def check_tokenizer(tokenizer: Any) -> None:
    """Refuse what is no tokenizer of transformers.

    Raises
    ------
    InputError
        If it is not.
    """
    from transformers import PreTrainedTokenizerBase  # with it comes torch, which sequences of given ids do not need

    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise InputError(
            f"tokenizer must be a tokenizer of transformers, as posstats.load_model returns beside the model, not "
            f"{shown(tokenizer)}"
        )


def ordinary_tokens(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    """Ids of the ordinary tokens of a vocabulary.

    Left out are special tokens, tokens added to the vocabulary after its training (chat and control tokens, runs of
    blanks) and reserved entries such as ``<unused12>``: a model has seen few or none of them, so their embeddings say
    nothing about it.

    Parameters
    ----------
    tokenizer : PreTrainedTokenizerBase
        The tokenizer.

    Returns
    -------
    ndarray of int64, shape (token,)
        Ids in ascending order.
    """
    left_out = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    return np.array(
        sorted(i for text, i in tokenizer.get_vocab().items() if i not in left_out and not _UNUSED.fullmatch(text)),
        dtype=np.int64,
    )


def choice_of_bos(tokenizer: PreTrainedTokenizerBase) -> str:
    """How to choose a BOS token where the tokenizer has none, and which there are, as a part of a message."""
    special = ", ".join(tokenizer.all_special_tokens) or "none"
    return (
        "choose one, mostly the token that ends a text, by spelling or id (--bos-token, BOS_TOKEN= of make, "
        f"sequences.bos_token of a configuration, bos_token= in Python); its special tokens are {special}"
    )


def choose_bos(tokenizer: PreTrainedTokenizerBase, bos: bool, bos_token: str | int | None) -> tuple[int | None, str]:
    """Id and spelling of the BOS token to put in the ids; (None, "") for none.

    Raises
    ------
    InputError
        If the tokenizer has none and none is chosen, or the choice is no token.
    """
    if not bos:
        if bos_token is not None:
            raise InputError(f"bos_token={shown(bos_token)} was given together with bos=False; give one of them")
        return None, ""
    if bos_token is None:
        chosen = tokenizer.bos_token_id
        if chosen is None:
            raise InputError(
                f"this tokenizer has no BOS token: {choice_of_bos(tokenizer)}; or do without one (--no-bos of posstats "
                "dump, sequences.bos of a configuration, bos=False in Python)"
            )
        return int(chosen), str(tokenizer.convert_ids_to_tokens(int(chosen)))
    vocabulary = tokenizer.get_vocab()
    if isinstance(bos_token, str):
        if bos_token not in vocabulary:
            raise InputError(
                f"bos_token={bos_token!r} is not in the vocabulary; the special tokens are "
                f"{', '.join(tokenizer.all_special_tokens) or 'none'}"
            )
        return vocabulary[bos_token], bos_token
    spelling = {i: text for text, i in vocabulary.items()}
    token = whole_number("bos_token, where it is no text,", bos_token, 0, max(spelling))
    if token not in spelling:
        raise InputError(f"bos_token={token} is not a token id; not every number up to {max(spelling)} is")
    return token, spelling[token]


def ordinary_beside(tokenizer: PreTrainedTokenizerBase, bos_id: int | None) -> np.ndarray:
    """Ordinary tokens other than the one that serves as BOS.

    Raises
    ------
    InputError
        If there are none: a folder without the files of a tokenizer may still give an empty one.
    """
    ordinary = ordinary_tokens(tokenizer)
    ordinary = ordinary[ordinary != bos_id] if bos_id is not None else ordinary
    if not len(ordinary):
        raise InputError(
            "this tokenizer has no ordinary tokens: are its files, such as tokenizer.json, beside those of the model?"
        )
    return ordinary
