"""``python -m spark.merge``: one half of :mod:`spark.tiering` by itself."""

from spark.common.entry import main
from spark.tiering.job import merge

if __name__ == "__main__":
    main("merge", merge)
