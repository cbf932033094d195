"""Datasets of which logits were changed on purpose, made to agree with themselves again."""

import numpy as np


def sealed(ds):
    """Give a dump the sums that its logits have at the recorded offsets."""
    offsets = ds.offset.values.tolist()
    sums = ds.logit_sum_by_lag.copy(deep=True)
    total = np.nansum(ds.logit.transpose(*sums.dims[:-1], "query", "offset").values.astype(float), axis=-2)
    sums[..., offsets] = total.astype(sums.dtype)
    return ds.assign(logit_sum_by_lag=sums)
