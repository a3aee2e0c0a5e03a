"""``python -m spark.split``: one half of :mod:`spark.tiering` by itself."""

from spark.common.entry import main
from spark.tiering.job import split

if __name__ == "__main__":
    main("split", split)
