"""``python -m spark.gc``; for ``spark-submit``, this file."""

from spark.common.entry import main
from spark.gc.job import gc

if __name__ == "__main__":
    main("gc", gc)
