"""How often a gateway puts an object: what each one costs is a request of the store."""


def paced(wanted_at: float, last: float, apart_s: float) -> float:
    """When what is wanted at ``wanted_at`` is done, ``apart_s`` behind the ``last`` time at the
    earliest: at once after a silence. Seconds of one clock; never before: minus infinity."""
    return max(wanted_at, last + apart_s)
