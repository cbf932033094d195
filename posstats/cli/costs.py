"""How the cost of a dump is told."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posstats.cli.options import lines, size_text, time_text

if TYPE_CHECKING:
    from posstats.dumping.run.cost import Cost


def cost_facts(path: Path, cost: Cost) -> dict[str, Any]:
    """Return the cost of a dump for a script: names and numbers."""
    return {"file": str(path)} | asdict(cost)


def cost_text(path: Path, cost: Cost) -> str:
    """Return the cost of a dump for people: a few lines."""
    if cost.state == "recorded":
        return f"{path}: is there with these settings and would be reused ({size_text(cost.file_bytes)})"
    time = ("" if cost.seconds < 1 else "about ") + time_text(cost.seconds)
    facts = {
        "to record": f"{cost.left} of {cost.sequences} sequences (each condition counted), {cost.batch} at once",
        "time": f"{time} at the speed of the batches just tried, beside starting Python and loading the model",
        "file": f"about {size_text(cost.file_bytes)}; {size_text(cost.value_bytes)} in memory",
        "disk": f"{size_text(cost.disk_bytes)} at most while it is written, the pieces and beside them the file; "
        f"{size_text(cost.free_bytes)} are free",
        "memory": f"at most about {size_text(cost.memory_bytes)} for the weights and one batch, beside about 0.5 GB "
        "for Python and torch",
    }
    if cost.disk_bytes > cost.free_bytes:
        facts["disk"] += ": NOT ENOUGH, make room, or record fewer sequences, conditions or offsets"
    done = "taken up" if cost.state == "begun" else "recorded"
    replaces = f", and would replace the file there, which {cost.replaces}" if cost.replaces else ""
    return f"{path}: would be {done}{replaces}\n{lines(facts)}"
