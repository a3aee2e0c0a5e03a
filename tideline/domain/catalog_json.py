"""Frozen dataclasses to JSON's own types and back, strictly: every field, of its type, no other."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints
from uuid import UUID


def to_plain(value: Any) -> Any:
    """UUIDs become text, tuples lists, dataclasses objects; class variables are left out."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, tuple):
        return [to_plain(one) for one in value]
    kind: Any = type(value)
    if (names := _names(kind)) is not None:
        return {name: to_plain(getattr(value, name)) for name in names}
    return value


@cache
def _names(kind: type) -> tuple[str, ...] | None:
    """Of the fields of a dataclass; ``None`` for any other type."""
    return tuple(one.name for one in fields(kind)) if is_dataclass(kind) else None


def from_plain(kind: Any, plain: Any) -> Any:
    """Inverse of :func:`to_plain` for the type ``kind``. Raises ``ValueError`` for what has another
    shape: a field too many or too few counts, a boolean is no number."""
    if is_dataclass(kind):
        return _dataclass(kind, plain)
    if isinstance(kind, UnionType):
        (one,) = (arm for arm in get_args(kind) if arm is not type(None))
        return None if plain is None else from_plain(one, plain)
    if get_origin(kind) is tuple:
        return _tuple(get_args(kind), plain)
    if kind is UUID:
        if not isinstance(plain, str) or plain != str(UUID(plain)):
            raise ValueError(f"{plain!r} is no UUID")
        return UUID(plain)
    if type(plain) is not kind:
        raise ValueError(f"{plain!r} is no {kind.__name__}")
    return plain


@cache
def _hints(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {one.name: hints[one.name] for one in fields(kind)}


def _dataclass(kind: Any, plain: Any) -> Any:
    hints = _hints(kind)
    if not isinstance(plain, dict) or plain.keys() != hints.keys():
        raise ValueError(f"{kind.__name__} has the fields {', '.join(hints)}")
    return kind(**{name: from_plain(hint, plain[name]) for name, hint in hints.items()})


def _tuple(kinds: tuple[Any, ...], plain: Any) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise ValueError(f"{plain!r} is no list")
    if kinds[-1] is Ellipsis:
        return tuple(from_plain(kinds[0], one) for one in plain)
    if len(plain) != len(kinds):
        raise ValueError(f"{len(plain)} values where {len(kinds)} belong")
    return tuple(from_plain(kind, one) for kind, one in zip(kinds, plain, strict=True))
