"""``python -m spark.tiering``; for ``spark-submit``, this file."""

from spark.common.entry import main
from spark.tiering.job import tiering

if __name__ == "__main__":
    main("tiering", tiering)
