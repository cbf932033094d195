"""``posstats inspect``: what is in a dump, and whether it is whole."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from posstats.cli.options import AsJson, examples, lines, print_json, size_text
from posstats.errors import DumpError

EPILOG = examples("inspect data/mine.h5", "inspect data/mine.h5 --json | jq .conditions")


def inspect(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The dump to look at.")],
    as_json: AsJson = False,
) -> None:
    """Say what is in a dump: model, conditions, dimensions, size, settings.

    Long values are cut short; --json has everything in full.

    Ends with exit code 2 where the file is no whole dump; of an unfinished one it says how much is there.
    """
    from posstats.dataset.store import open_dump, parts_folder

    if not path.exists() and parts_folder(path).is_dir():
        _unfinished(path, as_json)
    with open_dump(path) as dataset:
        facts: dict[str, Any] = {
            "file": str(path),
            "bytes": path.stat().st_size,
            "values_bytes": dataset.nbytes,
            "complete": True,
            "sizes": dict(dataset.sizes),
            "documents": len(set(dataset.document.values.tolist())),
            "conditions": [str(name) for name in dataset.condition.values],
            "offsets": dataset.offset.values,
            "layer_window": dataset.layer_window.values if "layer_window" in dataset else None,
            "layer_rotary": dataset.layer_rotary.values if "layer_rotary" in dataset else None,
            "variables": {
                str(name): {
                    "dims": list(one.dims),
                    "units": one.attrs.get("units", ""),
                    "means": one.attrs.get("long_name", ""),
                }
                for name, one in dataset.data_vars.items()
            },
            "attributes": dict(sorted(dataset.attrs.items())),
        }
    if as_json:
        print_json(facts | {"attributes": {name: _decoded(name, one) for name, one in facts["attributes"].items()}})
        return
    sizes = facts["sizes"]
    typer.echo(
        f"{path}: a whole posstats dump, {size_text(facts['bytes'])}, {size_text(facts['values_bytes'])} in memory"
    )
    shown: dict[str, object] = {
        "sequences": f"{sizes['sequence']} of {2 * sizes['query']} tokens from {facts['documents']} documents",
        "model": f"{sizes['layer']} layers of {sizes['head']} heads",
        "conditions": ", ".join(facts["conditions"]),
        "offsets": ", ".join(map(str, facts["offsets"])),
        "dimensions": ", ".join(f"{name} {size}" for name, size in sizes.items()),
        "variables": ", ".join(facts["variables"]),
    }
    if facts["layer_window"] is not None:
        shown["windows"] = _runs([f"{size} tokens" if size else "none" for size in facts["layer_window"].tolist()])
    if facts["layer_rotary"] is not None:
        shown["rotary"] = _runs(["yes" if rotates else "no" for rotates in facts["layer_rotary"].tolist()])
    typer.echo(lines(shown))
    _controls(facts["attributes"])
    typer.echo("attributes (--json has them in full)")
    for name, value in facts["attributes"].items():
        text = str(value.tolist() if hasattr(value, "tolist") else value)
        typer.echo(f"  {name}: {text if len(text) <= 100 else text[:97] + '...'}")


#: Known answer -> unit of the distance from it, and the largest that is rounding in float64.
_CONTROLS = {"closed": ("relative", 1e-9), "shift": ("nats", 1e-9), "repeat": ("nats", 1e-9)}


def _controls(attributes: dict[str, Any]) -> None:
    """Say how far the model is from its known answers, and whether that is rounding."""
    if "control_note" not in attributes:
        return
    shown: dict[str, object] = {}
    for name, (unit, most) in _CONTROLS.items():
        own, wide = (attributes.get(f"control_{name}{what}", np.nan) for what in ("", "_float64"))
        if np.isfinite([own, wide]).all():
            meaning = "rounding" if wide <= most else "NOT rounding: the known answer does not hold"
            shown[name] = f"{own:.1e} {unit} in {attributes['dtype']}, {wide:.1e} in float64: {meaning}"
    if attributes["control_note"]:
        shown["left out"] = attributes["control_note"]
    typer.echo(f"known answers (64 tokens of two sequences)\n{lines(shown)}")


def _decoded(name: str, value: Any) -> Any:
    """An attribute for a script: text that is JSON as what it says, and the version of the schema as a number."""
    if name == "schema_version" or (isinstance(value, str) and value.startswith(("{", "["))):
        with suppress(ValueError):
            return json.loads(value)
    return value


def _runs(values: list[str]) -> str:
    """What each layer has, briefly: values with the layers that have them.

    >>> _runs(["none"] * 4), _runs(["8 tokens", "none", "8 tokens", "8 tokens"])
    ('none in all 4 layers', '8 tokens in layers 0, 2-3; none in layer 1')
    """
    if len(set(values)) == 1:
        return f"{values[0]} in all {len(values)} layers"
    parts = []
    for value in dict.fromkeys(values):
        runs: list[list[int]] = []
        for layer in (index for index, one in enumerate(values) if one == value):
            if runs and runs[-1][-1] == layer - 1:
                runs[-1] = [runs[-1][0], layer]
            else:
                runs.append([layer])
        several = "s" * (sum(map(len, runs)) > 1)
        parts.append(f"{value} in layer{several} " + ", ".join("-".join(map(str, run)) for run in runs))
    return "; ".join(parts)


def _unfinished(path: Path, as_json: bool) -> None:
    """Say how much of an unfinished dump is there, and end with an error."""
    # The one room of the dump wing that knows no model: it reads the pieces without torch.
    from posstats.dataset.store import parts_folder
    from posstats.dumping.run.pieces import Pieces

    pieces = Pieces(parts_folder(path))
    manifest = pieces.manifest()
    total = manifest.sizes["condition"] * manifest.sizes["sequence"] if manifest else 0
    left = sum(span.stop - span.start for span in pieces.missing(manifest)) if manifest else 0
    if as_json:
        print_json({"file": str(path), "complete": False, "recorded": total - left, "of": total})
    raise DumpError(
        f"the dump {path} is not finished, {total - left} of {total} sequences are recorded (each condition counted): "
        "run the same dump again, it goes on where it stopped"
    )
