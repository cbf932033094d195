"""Tables of a TOML file as dataclasses, read strictly: an unknown key or a value of another type is an error."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, get_args, get_origin, get_type_hints

from posstats.errors import InputError

_TYPE_NAMES = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}


def merged(document: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables merged key by key; anything else replaced."""
    result = dict(document)
    for key, value in changes.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def table(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it is a table; `where` is what an error calls it."""
    if not isinstance(value, Mapping):
        raise InputError(f"{where} must be a table of keys, not {value!r}")
    return value


def section(kind: type, content: Mapping[str, Any], where: str) -> Any:
    """A dataclass from a table of its fields, which it checks itself; `where` is what an error calls the table."""
    allowed = [entry.name for entry in fields(kind)]
    unknown = [key for key in content if key not in allowed]
    if unknown:
        raise InputError(f"{where} has no key {unknown[0]!r}; its keys are {', '.join(allowed)}")
    types = get_type_hints(kind)
    values = {key: _value(value, types[key], f"{where} {key}") for key, value in content.items()}
    try:
        return kind(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


def _value(value: Any, kind: Any, where: str) -> Any:
    """The value, if it is of its type; lists become tuples and whole numbers floats."""
    allowed = (
        [kind] if get_origin(kind) is tuple else [one for one in get_args(kind) or (kind,) if one is not type(None)]
    )
    for one in allowed:
        if get_origin(one) is tuple and isinstance(value, list):
            return tuple(_value(item, get_args(one)[0], where) for item in value)
        if type(value) is one:
            return value
        if one is float and type(value) is int:
            return float(value)
    described = " or ".join("a list" if get_origin(one) is tuple else _TYPE_NAMES[one] for one in allowed)
    raise InputError(f"{where} must be {described}, not {value!r}")
