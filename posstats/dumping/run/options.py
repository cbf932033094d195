"""How a dump is recorded: every option of :func:`posstats.dump` in one object, checked once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from posstats.arguments import flag, seed_of, several, shown, whole_number
from posstats.dataset.conditions import check_positions, parse_conditions
from posstats.errors import InputError
from posstats.vocabulary import BASELINE, DEFAULT_OFFSETS


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options of a dump that can be checked without a model and without sequences.

    Raises InputError if an option is out of range or of another type, or a condition does not exist.
    """

    #: Interventions on the input, in their canonical spelling.
    conditions: Iterable[str] = (BASELINE,)
    #: Distances at which logits are kept, positions at which the residual stream is; ascending.
    offsets: Iterable[int] = DEFAULT_OFFSETS
    probes: Iterable[int] = ()
    #: Sequences per forward pass; None for what the memory allows.
    batch_size: int | None = None
    #: Seed of what conditions draw.
    seed: int = 0
    #: (k, n): only the k-th of n shares; None for everything.
    shard: tuple[int, int] | None = None
    #: Whether unfinished work is taken up, and whether a dump with other settings is replaced.
    resume: bool = True
    overwrite: bool = False

    def __post_init__(self) -> None:
        checked = {
            "conditions": tuple(condition.name for condition in parse_conditions(self.conditions)),
            "offsets": check_positions("offset", self.offsets),
            "probes": check_positions("probe", self.probes),
            "batch_size": None if self.batch_size is None else whole_number("batch_size", self.batch_size, 1),
            "seed": seed_of(self.seed),
            "shard": None if self.shard is None else _shard(self.shard),
            "resume": flag("resume", self.resume),
            "overwrite": flag("overwrite", self.overwrite),
        }
        if not checked["offsets"]:
            raise InputError("at least one offset must be recorded, such as 0")
        if self.shard is not None and not self.resume:
            raise InputError("a shard cannot discard unfinished work, which belongs to the other shards too")
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @property
    def share(self) -> tuple[int, int]:
        """The shard, (1, 1) where there is none."""
        return self.shard or (1, 1)


def _shard(given: Iterable[int]) -> tuple[int, int]:
    numbers = [whole_number("shard", value) for value in several("shard", given, "two whole numbers, k and n")]
    if len(numbers) != 2 or not 1 <= numbers[0] <= numbers[1]:
        raise InputError(f"shard must be (k, n) with 1 <= k <= n, not {shown(given)}")
    return numbers[0], numbers[1]
