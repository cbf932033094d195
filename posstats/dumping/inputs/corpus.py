"""Texts to cut token sequences from: where they are read from, and which crops are taken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from pathlib import Path

import numpy as np

from posstats.arguments import file_path, several, shown
from posstats.dumping.inputs.labels import check_unicode, document_labels
from posstats.errors import InputError

_SOURCES = "texts, a mapping of document label to text, or the name of a file or folder"


class Crops:
    """Texts grouped by document, from which crops of one size are drawn, never the same one twice."""

    def __init__(self, size: int, rng: np.random.Generator) -> None:
        self._size, self._rng = size, rng
        self._starts: dict[str, list[tuple[np.ndarray, int]]] = {}

    @property
    def documents(self) -> int:
        """Documents that can give a crop."""
        return len(self._starts)

    def offer(self, label: str, tokens: np.ndarray) -> bool:
        """Take a text, if it is long enough for a crop."""
        starts = len(tokens) - self._size + 1
        if starts > 0:
            self._starts.setdefault(label, []).append((tokens, starts))
        return starts > 0

    def draw(self, n: int, name: str, short: int) -> tuple[list[str], np.ndarray]:
        """Labels and ids of `n` crops: round after round over the documents, in the order they were offered."""
        capacity = {label: sum(starts for _, starts in parts) for label, parts in self._starts.items()}
        if sum(capacity.values()) < n:
            raise InputError(
                f"{name} gives only {sum(capacity.values())} different crops of {self._size} tokens, {n} are wanted "
                f"({short} texts are too short); use shorter or fewer sequences, or more text"
            )
        labels: list[str] = []
        while len(labels) < n:
            round_ = [label for label, left in capacity.items() if left > 0][: n - len(labels)]
            labels += round_
            for label in round_:
                capacity[label] -= 1
        chosen = {label: iter(self._choose(label, labels.count(label))) for label in dict.fromkeys(labels)}
        return labels, np.stack([next(chosen[label]) for label in labels])

    def _choose(self, label: str, count: int) -> list[np.ndarray]:
        parts = self._starts[label]
        ends = np.cumsum([starts for _, starts in parts])
        crops = []
        for flat in self._rng.choice(ends[-1], size=count, replace=False):
            part = int(np.searchsorted(ends, flat, side="right"))
            start = int(flat - (ends[part - 1] if part else 0))
            crops.append(parts[part][0][start : start + self._size])
        return crops


class Texts:
    """Labelled texts, each read only when asked for, so that a large folder is not held in memory."""

    def __init__(self, labels: list[str], texts: list[str] | list[Path]) -> None:
        self._labels, self._texts = labels, texts

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[str, str]:
        label, text = self._labels[index], self._texts[index]
        if isinstance(text, Path):
            return label, _read(text)
        check_unicode(f"the text of {label}", text)
        return label, text


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text file in UTF-8: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from error


def read_texts(source: str | Path | Mapping[str, str] | Iterable[str] | None) -> tuple[str, Texts]:
    """Name of the source for messages, and its labelled texts."""
    if source is None:
        from pydoc_data.topics import topics

        return "pydoc_data.topics", Texts(sorted(topics), [topics[label] for label in sorted(topics)])
    if not isinstance(source, str | PathLike):
        texts = several("source", source.values() if isinstance(source, Mapping) else source, _SOURCES)
        labels = list(source) if isinstance(source, Mapping) else [f"text {number}" for number in range(len(texts))]
        if broken := [text for text in texts if not isinstance(text, str)]:
            raise InputError(f"source must be {_SOURCES}; {shown(broken[0])} is no text")
        if not texts:
            raise InputError(f"source holds no text: give {_SOURCES}")
        return "given texts", Texts([str(label) for label in document_labels(labels, len(labels))], texts)
    path = file_path("source", source, folder=True)
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))
        if not files:
            raise InputError(f"the folder {path} holds no file")
        return path.name, Texts([file.relative_to(path).as_posix() for file in files], files)
    if not path.exists():
        raise InputError(f"there is no file or folder {path}; texts themselves are given as a list")
    if path.suffix == ".jsonl":
        lines = list(_read_json_lines(path))
        return path.name, Texts([label for label, _ in lines], [text for _, text in lines])
    return path.name, Texts([path.name], [path])


def _read_json_lines(path: Path) -> Iterator[tuple[str, str]]:
    empty = True
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"line {number} of {path} is not JSON: {error.msg}") from error
        if not isinstance(entry, dict) or not isinstance(entry.get("text"), str):
            raise InputError(f'line {number} of {path} is not an object with a string "text"')
        empty = False
        yield str(entry.get("document", number)), entry["text"]
    if empty:
        raise InputError(f"{path} holds no text")
