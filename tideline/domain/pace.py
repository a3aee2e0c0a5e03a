"""How often a gateway puts an object, and tells of commits: what each one costs is a request of the
store, or a notification that Postgres sends to every gateway."""

QUIET_S = 1.0
"""A log is quiet whose last commit was begun longer ago: the next one is told of."""


def paced(wanted_at: float, last: float, apart_s: float) -> float:
    """When what is wanted at ``wanted_at`` is done, ``apart_s`` behind the ``last`` time at the
    earliest: at once after a silence. Seconds of one clock; never before: minus infinity."""
    return max(wanted_at, last + apart_s)
