"""What an operator reads about a partition that is not covered: which offsets, and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Remedy:
    """Why a range is not covered, and what helps."""

    why: str
    what: str


REMEDIES: Mapping[str, Remedy] = {
    "bad_objects": Remedy(
        "objects of its segments are missing or short",
        "restore the objects under their keys (bucket versioning, backup, another region); if a "
        "replica still has these offsets locally they can be copied again, otherwise delete the "
        "records up to the end of the gap",
    ),
    "copying": Remedy(
        "their copy to remote storage began and has not finished",
        "wait for the leader's next try; if it stays so, look for failed copies in the leader's "
        "log and at its remote copy lag",
    ),
    "being_deleted": Remedy(
        "the brokers are deleting their segments",
        "wait until the log start has passed them; if it does not move, the deletion began "
        "without retention having asked for it",
    ),
    "other_lineage": Remedy(
        "the segments there were copied by a deposed leader, at other leader epochs",
        "un-freeze remote copying so that the present leader copies its own records; "
        "if it has them no longer, delete the records up to the end of the gap",
    ),
    "starts_late": Remedy(
        "remote storage begins above the log start",
        "wait for the log start to follow (retention); otherwise delete the records up to the "
        "first offset that remote storage has",
    ),
    "absent": Remedy(
        "no segment with these offsets was ever registered",
        "check that remote copying of the topic is on and healthy; if no replica has these "
        "offsets locally they are lost: delete the records up to the end of the gap",
    ),
}
ROLL = Remedy(
    "a replica has not rolled to B0",
    "wait for it to catch up and roll; if its high watermark stays behind, a change of leader "
    "heals it",
)


def reason(verdict: Mapping[str, Any]) -> str:
    """One line: complete, or which offsets are missing and why."""
    if verdict["complete"]:
        if verdict["wanted_start"] >= verdict["wanted_end"]:
            return "the prefix is empty"
        return f"{verdict['segments']} segments cover [{_range(verdict)})"
    if held_back := verdict.get("held_back"):
        return f"remote storage has every offset of [{_range(verdict)}), but {held_back}"
    shown = "; ".join(
        f"[{gap['start']}, {gap['end']}): {REMEDIES[gap['cause']].why}"
        for gap in verdict["gaps"][:3]
    )
    more = verdict["gap_count"] - min(3, len(verdict["gaps"]))
    rest = f"; and {more} more ranges" if more > 0 else ""
    return f"offsets {shown}{rest}"


def remedies(verdict: Mapping[str, Any]) -> list[str]:
    """What to do, one line for each cause, most urgent first."""
    if verdict.get("held_back"):
        return [ROLL.what]
    causes: Sequence[str] = list(dict.fromkeys(gap["cause"] for gap in verdict["gaps"]))
    return [REMEDIES[cause].what for cause in causes]


def detail(verdict: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept in Postgres with the verdict."""
    kept = {
        name: value
        for name, value in verdict.items()
        if name not in ("log_id", "complete") and value not in ([], None)
    }
    return kept | {"remedies": remedies(verdict)}


def _range(verdict: Mapping[str, Any]) -> str:
    return f"{verdict['wanted_start']}, {verdict['wanted_end']}"
