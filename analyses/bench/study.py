"""``make bench``: measure, keep the numbers as JSON, show them as Markdown."""

import argparse
import importlib.metadata
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from analyses.bench.estimators import Size, measure_estimators
from analyses.bench.harness import load
from analyses.bench.report import markdown
from posstats.execution.files import replacing
from posstats.vocabulary import DEFAULT_MODEL

_LIBRARIES = ("posstats", "torch", "transformers", "numpy", "scipy", "xarray", "h5py", "transformer-lens")
#: What ``--part`` takes -> sections measured.
PARTS = {
    "dump": ("forward", "eager", "transformer_lens", "memory"),
    "estimators": ("estimators",),
}
SECTIONS = tuple(section for sections in PARTS.values() for section in sections)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m analyses.bench", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("analyses/results/bench"), help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run, not how fast")
    parser.add_argument(
        "--part", action="append", choices=(*PARTS, *SECTIONS[:-1]), help="measure only this; can be repeated"
    )
    parser.add_argument("--model", default=DEFAULT_MODEL, help="default model, local folder, .gguf file or hub id")
    parser.add_argument("--models-dir", default="data/models", help="folder of converted models")
    given = parser.parse_args(arguments)
    chosen = {section for part in given.part or PARTS for section in PARTS.get(part, (part,))}
    given.out.mkdir(parents=True, exist_ok=True)
    file = given.out / "bench.json"
    results: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix=".scratch-", dir=given.out) as scratch:
        jobs = _jobs(given.model, given.models_dir, scratch, given.quick)
        for section in (name for name in SECTIONS if name in chosen):
            print(f"measuring {section} ...", file=sys.stderr, flush=True)
            start, before = time.perf_counter(), load()
            measured = jobs[section]()
            about = {"quick": given.quick, "model": given.model, "seconds": round(time.perf_counter() - start, 1)}
            results[section] = {"measured": measured, "about": about | _machine() | {"load": [before, load()]}}
            # After every section, so that an interrupted study keeps what it has measured.
            with replacing(file) as temporary:
                temporary.write_text(json.dumps(results, indent=1), encoding="utf-8")
    text = markdown(results)
    (given.out / "bench.md").write_text(text, encoding="utf-8")
    print(text)


def _jobs(model: str, models_dir: str, scratch: str, quick: bool) -> dict[str, Callable[[], Any]]:
    def recording(section: str) -> Any:
        # Estimating needs no torch, nor does its benchmark.
        from analyses.bench import lens, recorder

        forward, eager, memory, repeats = ((256, 32), (1024, 8), (4096, 5)), 2048, (2048, 4096, 8192), 3
        if quick:
            forward, eager, memory, repeats = ((32, 5), (64, 5)), 64, (32, 64), 1
        bench = recorder.Bench(model, models_dir, scratch, forward, eager, memory, repeats)
        measure = lens.measure_lens if section == "transformer_lens" else getattr(recorder, f"measure_{section}")
        return measure(bench)

    size = Size(24, 2, 3, 64, 200, 20, 2) if quick else Size(64, 30, 9, 256, 2000, 40, 3)
    return {name: partial(recording, name) for name in PARTS["dump"]} | {
        "estimators": lambda: measure_estimators(size, scratch)
    }


def _machine() -> dict[str, Any]:
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    cpuinfo = Path("/proc/cpuinfo")
    model = platform.processor()
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    return {
        "python": platform.python_version(),
        "versions": versions,
        "processor": model,
        "processors": len(os.sched_getaffinity(0)),
        "OMP_NUM_THREADS": threads,
    }
