"""``python -m spark.tiering``."""

from spark.common.entry import main
from spark.tiering.job import tiering

if __name__ == "__main__":
    main("tiering", tiering)
