"""One forward pass as numpy arrays, and the buffers it is gathered in."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch.nn.functional import pad

from posstats.dumping.recorder.median import magnitude_median
from posstats.dumping.recorder.statistics import AttentionStatistics
from posstats.errors import ModelError, NumericalError

_KEPT = tuple(f.name for f in fields(AttentionStatistics) if f.name not in ("output", "finite", "head_output"))

#: Number formats with a larger range than the one in use.
_WIDER = {
    torch.float16: "dtype='bfloat16' or 'float32', whose range is larger",
    torch.bfloat16: "dtype='float32'",
    torch.float32: "dtype='float64'",
}


@dataclass(frozen=True, slots=True)
class ForwardRecord:
    """What one forward pass left behind, as numpy arrays: float64 for a float64 model, float32 otherwise.

    T tokens were fed; analysed are the queries of the first half, i < T/2, and as many keys and lags.

    Attributes
    ----------
    logit : np.ndarray
        (batch, layer, head, query, offset), nats: s[i, i-offset] as it enters the softmax, scaling and soft-cap
        included; NaN where that key is 0, absent or masked.
    sink_logit : np.ndarray
        (batch, layer, head, query), nats: s[i, 0]; NaN where position 0 is not visible.
    log_denominator_rest : np.ndarray
        (batch, layer, head, query), nats: log of the sum over visible keys j >= 1 of exp s[i, j]; -inf where there is
        none. A learned sink is not part of it.
    steady_logit, steady_log_sum : np.ndarray
        (batch, layer, head, lag), nats: means over the reference queries r of s[r, r-lag] and of
        log(sum over d <= lag of exp s[r, r-d]), over those that see the key at that lag; NaN where none does.
    steady_square : np.ndarray
        (batch, layer, head), nats^2: mean over lags of the mean over the same queries of
        (s[r, r-lag] - log sum_d exp s[r, r-d])^2, d over the lags that the query sees.
    attention_received : np.ndarray
        (batch, layer, head, key): mean of A[i, j] over the sampled queries i >= j + 16 that see key j; NaN where none
        does.
    linear_r2_offset, linear_r2_position : np.ndarray
        (batch, layer, head): R-squared of s[i, j] regressed on (1, i-j), and on (1, i, j), over all visible pairs of
        the whole sequence, key 0 included; NaN where the logits or the offsets do not vary.
    sink_output_fraction : np.ndarray
        (batch, layer, head): mean over queries i >= 16 of |A[i,0] v[0]| / (|A[i,0] v[0]| + |sum over j >= 1 of
        A[i,j] v[j]|), Euclidean norms of the two parts of the head's output before the output projection.
        Between 0 and 1; NaN where the sequence has no query i >= 16.
    sink_value_norm, value_norm : np.ndarray
        (batch, layer, head): ||v[0]||, and the mean over keys j >= 1 of ||v[j]||; NaN where there is none.
    head_output : np.ndarray
        (batch, layer, head, channel): the head's output before the output projection, mean over queries i >= 16. NaN
        where the sequence has no such query, and beyond the channels of a layer with fewer than others.
    anchor_attention, anchor_sink_attention : np.ndarray
        (batch, layer, head): mean over queries i >= P + 16 of A[i,P] and of A[i,0]; NaN in a pass without an anchor P,
        and where there is no such query.
    trajectory : np.ndarray
        (batch, depth, hidden): residual stream at position 0; depth 0 is what enters the first block, depth k what
        leaves block k, before any final normalisation. From the depth of a substitute on it is that of the substitute.
    trajectory_departure : np.ndarray
        (batch, depth): ||full - alone|| / ||alone||, `full` the trajectory and `alone` that of the same input, and
        substitute, in a sequence of length 1.
    residual_norm : np.ndarray
        (batch, depth, token): Euclidean norm of the residual stream.
    residual_median : np.ndarray
        (batch, depth): median over tokens and channels of the magnitude of the residual stream.
    residual_sample : np.ndarray or None
        (batch, depth, probe, hidden): residual stream at the probe positions, None without probes.
    """

    logit: np.ndarray
    sink_logit: np.ndarray
    log_denominator_rest: np.ndarray
    steady_logit: np.ndarray
    steady_log_sum: np.ndarray
    steady_square: np.ndarray
    attention_received: np.ndarray
    linear_r2_offset: np.ndarray
    linear_r2_position: np.ndarray
    sink_output_fraction: np.ndarray
    sink_value_norm: np.ndarray
    value_norm: np.ndarray
    head_output: np.ndarray
    anchor_attention: np.ndarray
    anchor_sink_attention: np.ndarray
    trajectory: np.ndarray
    trajectory_departure: np.ndarray
    residual_norm: np.ndarray
    residual_median: np.ndarray
    residual_sample: np.ndarray | None


@dataclass(frozen=True, slots=True)
class Substitute:
    """Another input whose trajectory takes the place of that of position 0.

    Attributes
    ----------
    embedding : torch.Tensor
        (batch, hidden): the other input of every sequence, in the units of the embedding module's own output.
    depth : int
        The block, 0 .. layers-1, from the input of which on the residual stream at position 0 is that of the other
        input run alone.
    """

    embedding: torch.Tensor
    depth: int


def departure(full: torch.Tensor, alone: torch.Tensor) -> torch.Tensor:
    """Relative distance of trajectories from those of the same inputs run alone.

    Parameters
    ----------
    full, alone : torch.Tensor
        (..., hidden): residual streams inside a sequence and in a sequence of length 1.

    Returns
    -------
    torch.Tensor
        (...): ``||full - alone|| / ||alone||``; 0 where the two are equal, also if both are zero.

    Examples
    --------
    >>> departure(torch.tensor([[3.0, 4.5], [0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]])).tolist()
    [0.10000000149011612, 0.0]
    """
    distance = torch.linalg.vector_norm(full - alone, dim=-1)
    return distance / torch.where(distance > 0, torch.linalg.vector_norm(alone, dim=-1), 1)


class Pass:
    """The arrays of one forward pass, filled layer by layer.

    Parameters
    ----------
    inputs_embeds : torch.Tensor
        (batch, token, hidden): what is fed.
    n_layers : int
        Number of blocks.
    probes : sequence of int
        Positions at which the whole residual stream is kept.
    anchor : int, optional
        Position of an anchor, the attention on which is recorded.
    substitute : (int, torch.Tensor), optional
        Depth from which on the residual stream at position 0 is another one, and that one there, (batch, hidden).
    """

    def __init__(
        self,
        inputs_embeds: torch.Tensor,
        n_layers: int,
        probes: Sequence[int] = (),
        *,
        anchor: int | None = None,
        substitute: tuple[int, torch.Tensor] | None = None,
    ) -> None:
        self.layer, self.n_layers = 0, n_layers
        self.anchor, self.substitute = anchor, substitute
        self.dtype, self.fed = torch.promote_types(inputs_embeds.dtype, torch.float32), inputs_embeds.dtype
        self.batch, self.length, hidden = inputs_embeds.shape
        depths = n_layers + 1

        def empty(*shape: int) -> torch.Tensor:
            return torch.empty((self.batch, *shape), dtype=self.dtype, device=inputs_embeds.device)

        self.trajectory, self.norm, self.median = empty(depths, hidden), empty(depths, self.length), empty(depths)
        self.sample = empty(depths, len(probes), hidden) if probes else None
        self.probes = torch.tensor(probes, device=inputs_embeds.device)
        self.attention: dict[str, torch.Tensor] = {}
        self.finite: list[torch.Tensor] = []
        self.head_output: list[torch.Tensor] = []

    def keep(self, statistics: AttentionStatistics) -> None:
        """Store one layer's statistics."""
        for name in _KEPT:
            value = getattr(statistics, name)
            if self.layer == 0:
                shape = (self.batch, self.n_layers, *value.shape[1:])
                self.attention[name] = value.new_empty(shape)
            self.attention[name][:, self.layer] = value
        self.finite.append(statistics.finite)
        self.head_output.append(statistics.head_output)
        self.layer += 1

    def keep_residual(self, depth: int, stream: torch.Tensor) -> None:
        """Store the residual stream as it stands at one depth."""
        if stream.shape != (self.batch, self.length, self.trajectory.shape[-1]):
            raise ModelError(
                f"block {depth} passes on {tuple(stream.shape)}, not one (batch, token, hidden) residual stream"
            )
        self.trajectory[:, depth] = stream[:, 0]
        torch.linalg.vector_norm(stream, dim=-1, dtype=self.dtype, out=self.norm[:, depth])
        if self.length > 1:  # not of what runs alone
            self.median[:, depth] = magnitude_median(stream)
        if self.sample is not None:
            self.sample[:, depth] = stream[:, self.probes]

    def entering(self, depth: int, stream: torch.Tensor) -> torch.Tensor:
        """The residual stream that is to enter a block: `stream`, or with the substitute at position 0."""
        if self.substitute is not None and self.substitute[0] == depth:
            stream = torch.cat([self.substitute[1].to(stream)[:, None], stream[:, 1:]], 1)
            self.keep_residual(depth, stream)
        elif depth == 0:
            self.keep_residual(0, stream)
        return stream

    def finish(self, alone: torch.Tensor) -> ForwardRecord:
        """Check that everything is finite and hand the arrays over.

        Parameters
        ----------
        alone : torch.Tensor
            (batch, depth, hidden): trajectories of the inputs at position 0 run alone.
        """
        self._check_finite()
        arrays = {name: value.cpu().numpy() for name, value in self.attention.items()}
        channels = max(layer.shape[-1] for layer in self.head_output)  # few models have layers that differ in it
        padded = [pad(layer, (0, channels - layer.shape[-1]), value=torch.nan) for layer in self.head_output]
        return ForwardRecord(
            **arrays,
            head_output=torch.stack(padded, 1).cpu().numpy(),
            trajectory=self.trajectory.cpu().numpy(),
            trajectory_departure=departure(self.trajectory, alone).cpu().numpy(),
            residual_norm=self.norm.cpu().numpy(),
            residual_median=self.median.cpu().numpy(),
            residual_sample=None if self.sample is None else self.sample.cpu().numpy(),
        )

    def _check_finite(self) -> None:
        # A bad value anywhere reaches the norm of its position and the sums over all logits.
        streams = self.norm.isfinite().all(-1).all(0)
        wider = _WIDER.get(self.fed)
        advice = "check the weights, which may hold such values, and the inputs" + (
            f", or try {wider}" if wider else ""
        )
        for layer in range(self.n_layers):
            if not streams[layer]:
                place = "the embeddings" if layer == 0 else f"the residual stream after layer {layer - 1}"
                raise NumericalError(f"{place} hold values that are not finite: {advice}")
            if not self.finite[layer]:
                raise NumericalError(f"the attention logits of layer {layer} are not finite: {advice}")
        if not streams[-1]:
            raise NumericalError(f"the residual stream after the last layer holds values that are not finite: {advice}")
