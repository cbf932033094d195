"""One forward pass as numpy arrays, and the buffers it is gathered in."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from posstats.dumping.statistics import AttentionStatistics
from posstats.errors import ModelError, NumericalError


@dataclass(frozen=True, slots=True)
class ForwardRecord:
    """What one forward pass left behind, as numpy arrays: float64 for a float64 model, float32 otherwise.

    Attributes
    ----------
    logit : np.ndarray
        (batch, layer, head, query, offset), nats: s[i, i-offset] as it enters the softmax, scaling and soft-cap
        included; NaN where that key is 0, absent or masked.
    sink_logit : np.ndarray
        (batch, layer, head, query), nats: s[i, 0]; NaN where position 0 is not visible.
    log_denominator_rest : np.ndarray
        (batch, layer, head, query), nats: log of the softmax denominator over keys j >= 1 and the learned sink;
        -inf where there are none.
    logit_sum_by_lag : np.ndarray
        (batch, layer, head, lag), nats: sum over queries of s[i, i-lag] over visible keys j >= 1.
    sink_output_fraction : np.ndarray
        (batch, layer, head): mean over queries i >= 16 of |A[i,0] v[0]| / (|A[i,0] v[0]| + |sum over j >= 1 of
        A[i,j] v[j]|), Euclidean norms of the two parts of the head's output before the output projection.
        Between 0 and 1; NaN where the sequence has no query i >= 16.
    trajectory : np.ndarray
        (batch, depth, hidden): residual stream at position 0; depth 0 is what enters the first block, depth k what
        leaves block k, before any final normalisation.
    residual_norm : np.ndarray
        (batch, depth, query): Euclidean norm of the residual stream.
    residual_sample : np.ndarray or None
        (batch, depth, probe, hidden): residual stream at the probe positions, None without probes.
    """

    logit: np.ndarray
    sink_logit: np.ndarray
    log_denominator_rest: np.ndarray
    logit_sum_by_lag: np.ndarray
    sink_output_fraction: np.ndarray
    trajectory: np.ndarray
    residual_norm: np.ndarray
    residual_sample: np.ndarray | None


class Pass:
    """The arrays of one forward pass, filled layer by layer."""

    def __init__(self, inputs_embeds: torch.Tensor, n_layers: int, probes: Sequence[int]) -> None:
        self.layer, self.n_layers = 0, n_layers
        self.dtype = torch.promote_types(inputs_embeds.dtype, torch.float32)
        self.batch, self.length, hidden = inputs_embeds.shape
        depths = n_layers + 1

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty((self.batch, *shape), dtype=self.dtype, device=inputs_embeds.device)

        self.trajectory, self.norm = empty(depths, hidden), empty(depths, self.length)
        self.sample = empty(depths, len(probes), hidden) if probes else None
        self.probes = torch.tensor(probes, device=inputs_embeds.device)
        self.attention: dict[str, torch.Tensor] = {}

    def keep(self, statistics: AttentionStatistics) -> None:
        """Store one layer's statistics."""
        for name in ("logit", "sink_logit", "log_denominator_rest", "logit_sum_by_lag", "sink_output_fraction"):
            value = getattr(statistics, name)
            if self.layer == 0:
                shape = (self.batch, self.n_layers, *value.shape[1:])
                self.attention[name] = torch.empty(shape, dtype=self.dtype, device=value.device)
            self.attention[name][:, self.layer] = value
        self.layer += 1

    def keep_residual(self, depth: int, stream: torch.Tensor) -> None:
        """Store the residual stream as it stands at one depth."""
        if stream.shape != (self.batch, self.length, self.trajectory.shape[-1]):
            raise ModelError(
                f"block {depth} passes on {tuple(stream.shape)}, not one (batch, query, hidden) residual stream"
            )
        self.trajectory[:, depth] = stream[:, 0]
        torch.linalg.vector_norm(stream, dim=-1, dtype=self.dtype, out=self.norm[:, depth])
        if self.sample is not None:
            self.sample[:, depth] = stream[:, self.probes]

    def finish(self) -> ForwardRecord:
        """Check that everything is finite and hand the arrays over."""
        self._check_finite()
        arrays = {name: value.cpu().numpy() for name, value in self.attention.items()}
        return ForwardRecord(
            **arrays,
            trajectory=self.trajectory.cpu().numpy(),
            residual_norm=self.norm.cpu().numpy(),
            residual_sample=None if self.sample is None else self.sample.cpu().numpy(),
        )

    def _check_finite(self) -> None:
        # A bad value anywhere reaches the norm of its position and the denominators of its queries: no need to look at
        # every number. The first query alone has no ordinary key, hence its denominator of -inf.
        streams = self.norm.isfinite().all(-1).all(0)
        denominators = self.attention["log_denominator_rest"][..., 1:]
        logits = (denominators < torch.inf).all(-1).all(-1).all(0)
        lags = self.attention["logit_sum_by_lag"].isfinite().all(-1).all(-1).all(0)
        advice = "try dtype='float32' (or 'bfloat16' instead of 'float16'), and check the weights and inputs"
        for layer in range(self.n_layers):
            if not streams[layer]:
                place = "the embeddings" if layer == 0 else f"the residual stream after layer {layer - 1}"
                raise NumericalError(f"{place} hold values that are not finite: {advice}")
            if not (logits[layer] and lags[layer]):
                raise NumericalError(f"the attention logits of layer {layer} are not finite: {advice}")
        if not streams[-1]:
            raise NumericalError(f"the residual stream after the last layer holds values that are not finite: {advice}")
