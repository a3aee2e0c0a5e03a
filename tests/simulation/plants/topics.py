"""Which topic a name means, and which partitions it has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.history.violations import Kind
from tests.simulation.plants.bug import PAST_B0, Theme, edited, instead
from tideline.control_plane.memory.topics import Topics
from tideline.domain.grown import NewLog
from tideline.gateway.admin import topics as admin_topics
from tideline.gateway.admin.create_topics import CreateTopicsHandler, _Creation
from tideline.gateway.admin.tellings import Tellings
from tideline.gateway.tracking.view import TrackingView
from tideline.migration import growth

THEME = Theme()
bug = THEME.bug
OTHERS = (Kind.LOST, Kind.INVENTED, Kind.DIFFERENT, Kind.REORDERED)


async def _says_nothing(*_: Any, **__: Any) -> None:
    return None


bug("deletion untold", "nobody tells Postgres that a topic was deleted, and another may be created "
    "under its name: its records would go into the dead one's suffix", OTHERS,
    instead(Tellings, "_tell", _says_nothing),
    instead(CreateTopicsHandler, "_make_way", _says_nothing), recreation=True)  # fmt: skip


def _never(*_: Any, **__: Any) -> bool:
    return False


bug("born unawares", "a topic that is born diskless is shown before every gateway knows its id: "
    "requests by id reach its sealed log, which takes no record", (*PAST_B0, Kind.SENT, Kind.FATAL),
    instead(TrackingView, "is_hidden", _never), instead(_Creation, "_barrier", _says_nothing),
    recreation=True)  # fmt: skip
bug("birth counted twice", "that gateways track a name counts as if they knew its id, and the name "
    "is shown: requests by id reach its sealed log", (*PAST_B0, Kind.SENT, Kind.FATAL),
    edited(Topics, "complete_creation", ("            topic.round += 1\n"
                                         "            topic.acknowledged.clear()\n",
                                         "            pass\n")),
    instead(TrackingView, "is_hidden", _never), recreation=True)  # fmt: skip


def _forgets(self: TrackingView, ids: Any) -> None:
    return None


bug("names go on", "a gateway neither looks whether a name means another topic in Kafka, nor "
    "remembers which ids are dead: what is written by name goes into the dead one's suffix", OTHERS,
    instead(TrackingView, "displace", _forgets), instead(TrackingView, "_bury", _forgets),
    recreation=True)  # fmt: skip


def _nobody(logs: Sequence[NewLog]) -> NewLog | None:
    return None


bug("growth over records (F5)", "a topic grows over a partition that nobody knows, without a look "
    "at its log: what it holds is hidden", (Kind.LOST, *PAST_B0),
    edited(admin_topics, "assert_always_empty",
           ("if (held := next((log for log in logs if log.held_records), None)) is not None:",
            "held = None\n    if held is not None:"),
           ("if (unknown := first_in_the_way(logs)) is not None:",
            "unknown = None\n    if unknown is not None:")))  # fmt: skip
bug("grown as it is (F5)", "the worker takes every partition that came past the gateways for one "
    "that begins diskless, also one that holds records: they are hidden", (Kind.LOST, *PAST_B0),
    instead(growth, "first_in_the_way", _nobody))  # fmt: skip
