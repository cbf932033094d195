"""The dump wing: the only rooms that import torch and transformers.

Not named `dump`: the package would hide the function :func:`posstats.dump`.
"""
