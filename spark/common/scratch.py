"""Where a task puts files that are too large for its memory."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

LOCAL_DIRS = "SPARK_LOCAL_DIRS"
"""Spark tells each Python worker its own directories by this, in every deploy mode: those of
``spark.local.dir``, of YARN's container, of the pod's volumes."""
_BLOCKS = "blockmgr-"


def scratch_directory() -> Path:
    """A directory on one of Spark's local disks, whichever by chance; outside of a task the
    system's temporary directory. Never that of Spark's own blocks: what a killed process leaves
    beside it is found by the next one on this machine."""
    named = [Path(one) for one in os.environ.get(LOCAL_DIRS, "").split(",") if one]
    found = [one.parent if one.name.startswith(_BLOCKS) else one for one in named]
    usable = [one for one in found if one.is_dir()]
    return random.choice(usable) if usable else Path(tempfile.gettempdir())
