"""What a planted bug is, and how it gets into the code that runs.

A change is either another function in the place of one, or the text of one with a line edited. An
edit names the text that it replaces, so a plant that the code has outgrown is none any more: it
raises :class:`DoesNotFit`, as a function does that is called in another way than the one whose
place it takes.
"""

from __future__ import annotations
import __future__

import inspect
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from inspect import Parameter
from types import FunctionType
from typing import Any
from unittest.mock import patch

from tests.history.violations import Kind
from tests.nightly.mutations.table import mutations
from tests.simulation.recreation import RECREATION
from tests.simulation.run import MIGRATION, Family
from tests.simulation.schedules import STANDS_IN_FROM

PAST_B0 = (Kind.LOST, Kind.DIFFERENT, Kind.TWICE, Kind.REORDERED)
"""What a client sees of a record that went to the wrong side of B0."""
Edit = tuple[str, str]
"""A text that a function has once, and what is in its place."""


class DoesNotFit(Exception):
    """The code is not what the plant was made for."""


@dataclass(frozen=True)
class Change:
    """``name`` of the class or module ``owner`` is ``new`` while the bug is planted; or, without
    it, itself with ``edits``."""

    owner: Any
    name: str
    new: Any = None
    edits: tuple[Edit, ...] = ()

    def made(self) -> Any:
        """What is in the place of ``name``. Raises :class:`DoesNotFit`."""
        was = vars(self.owner).get(self.name)
        if was is None:
            raise DoesNotFit(f"{self.owner} has no {self.name} of its own")
        if self.edits:
            return _edited(_function(was), self.edits)
        if isinstance(_function(was), FunctionType):
            _assert_called_alike(_function(was), _function(self.new))
        return self.new


@dataclass(frozen=True)
class Bug:
    """``says``: what is broken, and what a client sees of it. ``kinds``: how that must show."""

    name: str
    says: str
    kinds: frozenset[Kind]
    changes: tuple[Change, ...]
    family: Family = MIGRATION
    first: int = 1
    """The seed from which on it is looked for."""
    is_gross: bool = False
    """A whole rule is gone: five schedules are enough to see it."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        made = [(change, change.made()) for change in self.changes]
        with ExitStack() as stack:
            for change, new in made:
                stack.enter_context(patch.object(change.owner, change.name, new))
            yield


class Theme:
    """The bugs of one module of this package, in the order in which they are told."""

    def __init__(self) -> None:
        self.bugs: list[Bug] = []

    def bug(
        self,
        name: str,
        says: str,
        kinds: tuple[Kind, ...],
        *changes: Change,
        recreation: bool = False,
        stand_ins: bool = False,
        is_gross: bool = False,
    ) -> None:
        self.bugs.append(
            Bug(
                name,
                says,
                frozenset(kinds),
                changes,
                RECREATION if recreation else MIGRATION,
                STANDS_IN_FROM + 1 if stand_ins else 1,
                is_gross,
            )
        )


def instead(owner: Any, name: str, new: Any) -> Change:
    """``new`` in the place of ``owner.name``."""
    return Change(owner, name, new)


def edited(owner: Any, name: str, *edits: Edit) -> Change:
    """``owner.name`` with another text in some places."""
    return Change(owner, name, edits=edits)


def as_in_table(owner: Any, name: str, row: str) -> Change:
    """``owner.name`` as a row of ``tests/nightly/mutations/table.toml`` breaks it."""
    (found,) = [one for one in mutations() if one.name == row]
    return Change(owner, name, edits=((found.old, found.new),))


def _function(attribute: Any) -> Any:
    if isinstance(attribute, property):
        return attribute.fget
    return attribute.__func__ if isinstance(attribute, (staticmethod, classmethod)) else attribute


def _edited(function: FunctionType, edits: tuple[Edit, ...]) -> Any:
    text = inspect.getsource(function)
    for old, new in edits:
        if text.count(old) != 1:
            raise DoesNotFit(f"{function.__qualname__} has {text.count(old)} times: {old}")
        text = text.replace(old, new)
    if text[0].isspace():
        text = f"if True:\n{text}"
    flags = __future__.annotations.compiler_flag
    code = compile(text, inspect.getfile(function), "exec", flags=flags, dont_inherit=True)
    made: dict[str, Any] = {}
    exec(code, function.__globals__, made)
    return made[function.__name__]


def _assert_called_alike(was: Callable[..., Any], new: Callable[..., Any]) -> None:
    """Whatever ``was`` may be called with, ``new`` takes, too."""
    theirs = inspect.signature(was).parameters.values()
    plain = [p for p in theirs if p.kind in (Parameter.POSITIONAL_ONLY, POSITIONAL)]
    named = [p for p in theirs if p.kind is Parameter.KEYWORD_ONLY]
    for needed in (False, True):
        some, few = (
            [p for p in all if not needed or p.default is Parameter.empty] for all in (plain, named)
        )
        by_name = {p.name: None for p in few}
        first, rest = some[:1], {p.name: None for p in some[1:] if p.kind is POSITIONAL}
        try:
            inspect.signature(new).bind(*[None] * len(some), **by_name)
            inspect.signature(new).bind(*[None] * len(first), **rest, **by_name)
        except TypeError as error:
            raise DoesNotFit(f"in the place of {was.__qualname__}: {error}") from error


POSITIONAL = Parameter.POSITIONAL_OR_KEYWORD
