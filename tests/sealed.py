"""Datasets of which logits were changed on purpose, made to agree with themselves again."""

import numpy as np


def sealed(ds):
    """Give a dump the sums that its logits have at the recorded offsets."""
    logit = ds.logit.transpose(*ds.logit_total.dims[:-1], "query", "offset").values
    return ds.assign(logit_total=(ds.logit_total.dims, np.nansum(logit.astype(np.float64), axis=-2)))
