"""The process that Spark's Python workers are copies of (``spark.python.daemon.module``).

It has imported what the tasks of all jobs do before it is copied; each worker would do so itself,
two seconds of a core. And it has no pandas: pyarrow looks for it as soon as an array is made of a
list, which takes a second, and no job uses it.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.abc import MetaPathFinder

IMPORTED = ("spark.common.remote_log", "spark.common.stores", "tideline.control_plane.jobs")
"""And with them pyarrow and the clients of Kafka, of the object store and of Postgres."""


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("jobs do without pandas", name=fullname)


def without_pandas() -> None:
    """For this process and its copies it is not installed, unless it is loaded already. (Cython's
    ``import`` takes a ``None`` in ``sys.modules`` for the module.)"""
    sys.meta_path.insert(0, _NoPandas())


if __name__ == "__main__":
    without_pandas()
    for module in IMPORTED:
        import_module(module)
    from pyspark.daemon import manager

    manager()
