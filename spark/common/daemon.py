"""The process that Spark's Python workers are copies of (``spark.python.daemon.module``).

It has imported what the tasks of all jobs do before it is copied; each worker would do so itself,
two seconds of a core. And it has no pandas: pyarrow looks for it as soon as an array is made of a
list, which takes a second, and no task uses it. (A driver has it: PySpark asks for it there.)

After each task PySpark collects garbage. What was imported is none, and to look through all of it
takes a tenth of a second of a core: it is set aside before the copies are made.

A process with threads must not be copied: one of them may hold a lock, which nobody lets go in the
copy. PySpark's own daemon imports nothing for that reason. This one keeps the libraries from
starting any, and hands over to PySpark's where there are some all the same.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from importlib.abc import MetaPathFinder

IMPORTED = (
    "pyspark.worker",
    "spark.common.remote_log",
    "spark.common.stores",
    "spark.coverage.frames",
    "tideline.control_plane.cataloged_jobs",
    "tideline.object_store.direct",
    "boto3.s3.transfer",
)
"""And with them pyarrow and the clients of Kafka, of the object store and of Postgres; and all that
judges coverage, at the time that :data:`spark.common.code.DIGEST` is of."""
WITHOUT_THREADS = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Of pyarrow's allocator, and of numpy's linear algebra, which no task does."""


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, *_: object) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("tasks do without pandas", name=fullname)


def without_pandas() -> None:
    """For this process and its copies it is not installed, unless it is loaded already. (Cython's
    ``import`` takes a ``None`` in ``sys.modules`` for the module.)"""
    sys.meta_path.insert(0, _NoPandas())


def threads() -> int:
    """Of this process; 0 where that cannot be seen."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return 0


def main() -> None:
    without_pandas()
    os.environ.update(WITHOUT_THREADS)
    for module in IMPORTED:
        import_module(module)
    if threads() != 1:
        os.execv(sys.executable, [sys.executable, "-m", "pyspark.daemon", *sys.argv[1:]])
    from pyspark.daemon import manager

    from spark.common import stores

    # What boto3 knows of S3 is no garbage either.
    stores.WHEN_MADE += [gc.collect, gc.freeze]
    gc.collect()
    gc.freeze()
    manager()


if __name__ == "__main__":
    main()
