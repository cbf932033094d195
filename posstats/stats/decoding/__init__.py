"""Decoding of position and discrimination of tokens: ridge scores and identification."""
