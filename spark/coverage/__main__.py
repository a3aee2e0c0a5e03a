"""``python -m spark.coverage``."""

from spark.common.entry import main
from spark.coverage.job import coverage

if __name__ == "__main__":
    main("coverage", coverage)
