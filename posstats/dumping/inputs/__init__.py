"""What a model is fed: tokens, texts, labelled sequences, and the conditions that change them."""
