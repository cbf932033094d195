"""What a model and a configuration, and files and folders of theirs, are called. Nothing here looks into a file."""

import hashlib
import re
from pathlib import Path

from posstats.vocabulary import PACKAGED_MODELS, is_path

#: The configuration whose dumps and results lie in the folders that it names, in none of its own.
_DEFAULT = "default.toml"


def plain(name: str) -> str:
    """A name in lower-case letters, digits, points and dashes.

    Of what letters of other scripts and signs leave, a digest tells the names apart.

    >>> plain("org/Some-Model"), plain("<|bos|>")
    ('org-some-model', 'bos-051b499d')
    """
    return _dashed(name) if re.fullmatch(r"[A-Za-z0-9._/\- ]*", name) else _with_digest(name, name)


def model_label(name: str) -> str:
    """Return what a model is called among files: its name, as :func:`plain` spells it.

    Of a folder or file here, which may be spelled in several ways, the name of its place (:func:`place_label`).
    """
    place = _place(name)
    return plain(name) if place is None else place_label(place)


def one_spelling(name: str) -> str:
    """The one spelling of a model that is a folder or file here: its path from this folder if it is within, or from /.

    Dumps hold the name of their model, and one under another spelling would count as another.
    """
    place = _place(name)
    if place is None or not place.exists():
        return name
    here = Path.cwd().resolve()
    return str(place.relative_to(here) if place.is_relative_to(here) else place)


def place_label(path: Path) -> str:
    """Base name of a file or folder with a digest of its absolute path: one name, however the path was spelled."""
    place = path.expanduser().resolve()
    return _with_digest(place.name, str(place))


def _place(name: str) -> Path | None:
    """Where a model lies, if its name is a path: that of the default model and hub ids are none."""
    path = Path(name).expanduser()
    return path.resolve() if name not in PACKAGED_MODELS and (is_path(name) or path.is_dir()) else None


def own_folder(folder: str, config: Path) -> str:
    """Folder of what a configuration makes, below the folder that it names: another one makes other things.

    >>> [own_folder("data", Path(name)) for name in ("analyses/default.toml", "analyses/mine.toml")]
    ['data', 'data/mine']
    >>> own_folder("data/mine", Path("analyses/mine.toml"))
    'data/mine'
    """
    if config.name == _DEFAULT or Path(folder).name == config.stem:
        return folder
    return str(Path(folder) / config.stem)


def _dashed(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.").lower()


def _with_digest(name: str, whole: str) -> str:
    return f"{_dashed(name)}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}".lstrip("-")
