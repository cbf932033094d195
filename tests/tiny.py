"""Tiny randomly initialised models of every family, shared by the tests.

Weights are larger than an initialisation for training would make them, so that attention is far from uniform and a
mistake in any term shows.
"""

from functools import lru_cache

import torch
import transformers

from posstats.dumping.model.float64 import compute_in_float64

_COMMON = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_ALTERNATING = ["sliding_attention", "full_attention", "sliding_attention"]
_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}


def _rope(kind: str, **more: object) -> dict:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **more}}


#: Family -> configuration class and what differs from the common configuration.
FAMILIES: dict[str, tuple[str, dict]] = {
    "llama": ("LlamaConfig", {}),
    "llama-linear": ("LlamaConfig", _rope("linear", factor=4.0)),
    "llama-dynamic": ("LlamaConfig", {"max_position_embeddings": 16, **_rope("dynamic", factor=2.0)}),
    "llama-yarn": ("LlamaConfig", _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "llama-llama3": (
        "LlamaConfig",
        _rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32),
    ),
    "llama-longrope": (
        "LlamaConfig",
        _rope(
            "longrope",
            short_factor=[1.0] * 6,
            long_factor=[1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
            factor=4.0,
            original_max_position_embeddings=32,
        ),
    ),
    "mistral": ("MistralConfig", {"sliding_window": 11, "head_dim": 12}),
    "qwen2": ("Qwen2Config", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("Qwen3Config", {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 2, "head_dim": 16}),
    "gemma2": (
        "Gemma2Config",
        {"sliding_window": 10, "layer_types": _ALTERNATING, "head_dim": 16, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "sliding_window": 10,
            "layer_types": _ALTERNATING,
            "head_dim": 16,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gpt_neox": ("GPTNeoXConfig", {"rotary_pct": 0.5, "use_parallel_residual": True}),
    "phi": ("PhiConfig", {"partial_rotary_factor": 0.5}),
    "phi3": ("Phi3Config", {}),
    "olmo2": ("Olmo2Config", {}),
    "stablelm": ("StableLmConfig", {"partial_rotary_factor": 0.5, "use_parallel_residual": True}),
    "cohere": ("CohereConfig", {"use_qk_norm": True}),
    "granite": (
        "GraniteConfig",
        {"attention_multiplier": 0.5, "embedding_multiplier": 3.0, "residual_multiplier": 0.7},
    ),
    "smollm3": ("SmolLM3Config", {"no_rope_layers": [1, 0, 1], "use_sliding_window": False}),
    "gpt_oss": (
        "GptOssConfig",
        {"sliding_window": 10, "layer_types": _ALTERNATING, "head_dim": 16, **_rope("default"), **_EXPERTS},
    ),
    "llama4": (
        "Llama4TextConfig",
        {
            "intermediate_size_mlp": 64,
            "attention_chunk_size": 16,
            "head_dim": 16,
            "no_rope_layers": [1, 0, 1],
            **_EXPERTS,
        },
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 12,
            "first_k_dense_replace": 3,
        },
    ),
    "olmo3": ("Olmo3Config", {"sliding_window": 10, "layer_types": _ALTERNATING}),
    "cohere2": ("Cohere2Config", {"sliding_window": 10, "layer_types": _ALTERNATING}),
    "mixtral": ("MixtralConfig", {"sliding_window": None, **_EXPERTS}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "head_dim": 16},
    ),
}

#: Models that have no business here: family -> configuration class and configuration.
OUTSIDERS: dict[str, tuple[str, dict]] = {
    "gpt2": ("GPT2Config", {"n_embd": 48, "n_head": 4, "n_layer": 2, "vocab_size": 97, "n_positions": 64}),
    "bert": ("BertConfig", {}),
    "t5": ("T5Config", {"d_model": 48, "d_ff": 64, "num_layers": 2, "num_heads": 4, "d_kv": 12, "vocab_size": 97}),
    "bloom": ("BloomConfig", {"hidden_size": 48, "n_layer": 2, "n_head": 4, "vocab_size": 97}),
    "mpt": ("MptConfig", {"d_model": 48, "n_layers": 2, "n_heads": 4, "vocab_size": 97, "max_seq_len": 64}),
}


def config(name: str, **changes: object) -> transformers.PretrainedConfig:
    """Configuration of a family; ``changes`` override its entries."""
    kind, more = FAMILIES[name] if name in FAMILIES else OUTSIDERS[name]
    common = _COMMON if name in FAMILIES or name == "bert" else {}
    # The classes change the nested dictionaries that they are given.
    entries = {key: (value.copy() if isinstance(value, dict | list) else value) for key, value in more.items()}
    return getattr(transformers, kind)(**{**common, **entries, **changes})


def build(name: str, dtype: str = "float32", seed: int = 0, **changes: object) -> transformers.PreTrainedModel:
    """Tiny random causal language model of a family, in evaluation mode."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config(name, **changes), dtype=torch.float32)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                spread = 0.25 if parameter.ndim > 1 else 0.2
                centre = 1.0 if parameter_name.endswith("norm.weight") else 0.0
                parameter.copy_(centre + spread * torch.randn(parameter.shape))
    model.to(getattr(torch, dtype)).eval()
    if dtype == "float64":
        compute_in_float64(model)
    return model


def byte_tokenizer(vocabulary: int) -> transformers.PreTrainedTokenizerFast:
    """Tokenizer of any text: "<bos>" and "<eos>", then a token for each byte, and further words up to a size."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    words = ["<pad>", "<bos>", "<eos>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words += [f"w{i}" for i in range(len(words), vocabulary)]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )


@lru_cache(maxsize=1)
def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """Tokenizer over the tiny vocabulary: one word per token, "<bos>" and "<eos>" special."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<bos>", "<eos>", *(f"w{i}" for i in range(3, _COMMON["vocab_size"]))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
