"""Models: find, check, vary, adapt, load and identify a checkpoint."""
