"""A dump from plan to file: memory, pieces that survive an interruption, the joined dataset."""
