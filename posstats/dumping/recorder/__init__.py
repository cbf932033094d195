"""One forward pass recorded: the structure of a model, its masks, and the statistics of its attention."""
