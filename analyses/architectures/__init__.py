"""The claims about architectures: inference-time variants of one model, and models adapted under each architecture."""
