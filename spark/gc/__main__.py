"""``python -m spark.gc``."""

from spark.common.entry import main
from spark.gc.job import gc

if __name__ == "__main__":
    main("gc", gc)
