"""A mapping by number that never changes: one that is made from another shares with it what is the
same. So a partition of a large topic is replaced, and two states of one are compared, at the cost
of what is other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

V = TypeVar("V")
PAGE = 64
"""Numbers that are kept together: a change copies one page, and the list of all."""


class Rows(Mapping[int, V], Generic[V]):
    """In the order in which they came, page by page."""

    __slots__ = ("_pages", "_size")

    def __init__(self, rows: Mapping[int, V]) -> None:
        self._pages: dict[int, dict[int, V]] = {}
        self._size = len(rows)
        for number, row in rows.items():
            self._pages.setdefault(number // PAGE, {})[number] = row

    @classmethod
    def of(cls, rows: Mapping[int, V]) -> Rows[V]:
        """``rows`` themselves, if they are such."""
        return rows if isinstance(rows, cls) else cls(rows)

    def __getitem__(self, number: int) -> V:
        return self._pages[number // PAGE][number]

    def __iter__(self) -> Iterator[int]:
        for page in self._pages.values():
            yield from page

    def __len__(self) -> int:
        return self._size

    def put(self, changed: Mapping[int, V | None]) -> Rows[V]:
        """The same with these; ``None``: without it."""
        made: Rows[V] = Rows({})
        made._pages, made._size = dict(self._pages), self._size
        for at in {number // PAGE for number in changed}:
            made._pages[at] = dict(self._pages.get(at, {}))
        for number, row in changed.items():
            page = made._pages[number // PAGE]
            before = len(page)
            if row is None:
                page.pop(number, None)
            else:
                page[number] = row
            made._size += len(page) - before
        return made

    def unlike(self, other: Rows[V]) -> Iterator[int]:
        """Numbers under which the other has another object, or none, and the other way round."""
        for at in self._pages.keys() | other._pages.keys():
            here, there = self._pages.get(at, {}), other._pages.get(at, {})
            if here is not there:
                for number in here.keys() | there.keys():
                    if here.get(number) is not there.get(number):
                        yield number
