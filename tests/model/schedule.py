"""A counterexample as a person reads it."""

from __future__ import annotations

from tests.model.search import Searched

SENTENCES: dict[str, str] = {
    "send": "a producer sends record {0} to process {1}",
    "unpark": "record {0}, parked at process {1}, goes on",
    "append": "Kafka takes record {0}: {1}",
    "append_late": "Kafka appends record {0} from a socket that nobody waits for",
    "replicate": "every replica has the log up to {0}",
    "move_leader": "the leader moves; its log ends at {0}",
    "move_leader_unclean": "an unclean election cuts the log at {0}",
    "ask": "process {0} asks Postgres whether it may tell: {1}",
    "tell": "of record {0}: {1}, by process {2}",
    "lose_answer": "the answer for record {0} is told, and nobody hears it",
    "tell_error": "record {0} {1}, by process {2}",
    "learn": "process {0} reads its row: {1} {2}",
    "say_tracked": "process {0} sends that it tracks round {1}",
    "hear_tracked": "Postgres hears of process {0} that it tracks round {1}; it is round {2}",
    "acknowledge_quiesce": "process {0} acknowledges that generation {1} is closed",
    "renew": "process {0} renews its lease",
    "lease_runs_out": "the lease of process {0} is {1}",
    "register": "process {0} registers incarnation {1}",
    "crash": "process {0} dies",
    "stop": "process {0} stops cleanly",
    "start": "process {0} starts {1}",
    "start_refused": "process {0} starts, is refused and {1}",
    "account": "process {0} accounts for what held its disk before",
    "end_refused": "process {0}, which serves by its disk, is refused and ends",
    "put_back": "an older disk is put back under process {0}: {1}",
    "begin_tracking": "the operator starts the migration: round {0}",
    "begin_tracking_stalled": "an attempt of the aborted run wakes: round {0}",
    "activate": "every gateway tracks the topic",
    "close": "generation {0} is closed",
    "close_again": "the closing of generation {0} is repeated",
    "look": "the worker has watched incarnation {0} stand still",
    "fence": "the worker fences incarnation {0}",
    "pass_barrier": "the barrier of generation {0} is passed",
    "read_log_end": "the worker reads the log end {0}",
    "read_producers": "the worker reads the producers (record, offset): {0}",
    "confirm_end": "the worker reads the log end again: {0}",
    "persist": "B0 is {0}",
    "seal": "Kafka's log is sealed",
    "quiesce_runs_out": "the deadline of generation {0} passes",
    "abort": "the operator aborts",
    "reset": "B0 is reset",
    "retire": "the operator retires gateway {0}",
    "attest": "the operator says that incarnation {0} is gone",
    "fetch": "Kafka answers a fetch at process {0}: high watermark {1}",
    "show": "process {0} shows the log up to {1}",
    "show_suffix": "process {0} shows the log up to {1}, suffix included",
    "observe_by_debug_reader": "a debug consumer at process {0} lists the log end {1}",
    "validate_position": "process {0} tells a consumer at {1} that its epoch ends at {2}",
}


def readable(result: Searched) -> str:
    """One numbered sentence a step, and what is broken at the end."""
    lines = [
        f"{number:3}. {SENTENCES[name].format(*about, *('',) * 3)}".rstrip(" ,")
        for number, (name, about) in enumerate(result.schedule, 1)
    ]
    return "\n".join([*lines, f"     -> {result.problem}"])
