"""Kafka's client quotas: which one holds for a client, and how long who exceeds it has to wait.

The order of precedence is that of ``ClientQuotaManager``, the sharing that of its
``DefaultQuotaCallback.quotaMetricTags``, the window that of ``Rate`` over ``SampledStat``, and the
delay that of ``QuotaUtils.throttleTime``, of request time bounded as ``ClientRequestQuotaManager``
has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import TypeAlias

ANONYMOUS = "ANONYMOUS"
"""``KafkaPrincipal.ANONYMOUS``: who has not logged in."""


class QuotaKind(StrEnum):
    """The keys of ``QuotaConfig`` that are enforced here."""

    PRODUCE = "producer_byte_rate"
    """In bytes per second."""
    FETCH = "consumer_byte_rate"
    """The same."""
    REQUEST = "request_percentage"
    """In percent of the time of one thread (KIP-124)."""


class Default(Enum):
    """The entity of all that have none of their own."""

    NAME = "<default>"


Name: TypeAlias = str | Default | None
"""``None``: the entity does not say."""


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """Whom a quota is for."""

    user: Name
    client_id: Name


@dataclass(frozen=True, slots=True)
class Limit:
    """The quota of one client."""

    bound: float
    """Per second."""
    shared: tuple[str, str]
    """User and client id of those who use it up together; empty: whichever."""


def candidates(user: str | None, client_id: str) -> Iterator[QuotaEntity]:
    """The entities of a client, the one that counts most first. ``user``: ``None`` if Kafka alone
    knows the name; then quotas of users are Kafka's to enforce."""
    for named in (user, Default.NAME) if user is not None else ():
        yield QuotaEntity(named, client_id)
        yield QuotaEntity(named, Default.NAME)
        yield QuotaEntity(named, None)
    yield QuotaEntity(None, client_id)
    yield QuotaEntity(None, Default.NAME)


def limit_of(quotas: Mapping[QuotaEntity, float], user: str | None, client_id: str) -> Limit | None:
    """The quota that holds for a client, of those of one kind; ``None``: none does."""
    for entity in candidates(user, client_id):
        if (bound := quotas.get(entity)) is not None:
            return Limit(
                bound,
                (
                    user or "" if entity.user is not None else "",
                    client_id if entity.client_id is not None else "",
                ),
            )
    return None


@dataclass(frozen=True, slots=True)
class QuotaWindow:
    """How a rate is measured."""

    samples: int = 11
    """``quota.window.num``"""
    sample_s: float = 1.0
    """``quota.window.size.seconds``"""

    @property
    def most_s(self) -> float:
        """A value of the bound times this, in one piece, is not throttled at an idle client
        (``maxValueInQuotaWindow``)."""
        return max(1, self.samples - 1) * self.sample_s

    def longest_throttle_s(self, kind: QuotaKind) -> float:
        """Nobody is throttled for longer at once (``ClientRequestQuotaManager.throttleTime``)."""
        return self.sample_s if kind is QuotaKind.REQUEST else float("inf")


class Usage:
    """What clients that share a quota have used of it lately."""

    def __init__(self, window: QuotaWindow) -> None:
        self._window = window
        self._samples: deque[tuple[float, float]] = deque()
        """Begin, in s, and value; the newest last."""

    def record(self, value: float, now: float) -> None:
        """``value`` is used at ``now``, in s, which never goes back."""
        if not self._samples or now - self._samples[-1][0] >= self._window.sample_s:
            self._samples.append((now, value))
        else:
            began, before = self._samples[-1]
            self._samples[-1] = (began, before + value)
        self._purge(now)

    def throttle_s(self, bound: float, now: float) -> float:
        """How long nothing may be used until the rate is ``bound`` again; 0: it is not above."""
        self._purge(now)
        if not self._samples:
            return 0.0
        window = self._window
        elapsed = now - self._samples[0][0]
        # What is missing of the least that is measured over counts as if nothing had been used.
        missing = window.samples - 1 - int(elapsed / window.sample_s)
        elapsed = max(elapsed + max(0, missing) * window.sample_s, 0.001)
        rate = sum(value for _, value in self._samples) / elapsed
        if rate <= bound:
            return 0.0
        return (rate - bound) / bound * elapsed if bound > 0 else elapsed

    def _purge(self, now: float) -> None:
        oldest = now - self._window.samples * self._window.sample_s
        while self._samples and self._samples[0][0] <= oldest:
            self._samples.popleft()
