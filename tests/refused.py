"""Mistakes that are refused, a line each."""

import pytest


def refused(error, words, call, /, *args, **options):
    """Assert that a call raises an error of this class, and that its message has these words (a regular expression)."""
    with pytest.raises(error, match=words):
        call(*args, **options)
