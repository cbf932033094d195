"""posstats: where absolute position comes from in decoder-only transformers with rotary embeddings."""

__version__ = "0.1.0"
