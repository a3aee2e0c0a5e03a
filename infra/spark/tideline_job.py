"""Runs a job of Tideline: ``spark-submit … tideline_job.py [NAME=VALUE …] JOB [OPTION …]``.

``JOB``: coverage, retention, split, merge, tiering, gc or verify. The ``NAME=VALUE`` words are set
in the environment first, in every deploy mode alike. This file lies in a directory of its own:
Python puts the directory of what it runs before everything that is installed, and in that of a job
its modules would be taken for others of the same names.
"""

import os
import runpy
import sys

JOBS = ("coverage", "retention", "split", "merge", "tiering", "gc", "verify")


def main():
    words = sys.argv[1:]
    while words and "=" in words[0] and not words[0].startswith("-"):
        name, _, value = words.pop(0).partition("=")
        os.environ[name] = value
    if not words or words[0] not in JOBS:
        said = f"{words[0]!r} is no job" if words else "no job is named"
        print(f"error: {said}: write one of {', '.join(JOBS)}", file=sys.stderr)
        return 2
    sys.argv = [f"spark.{words[0]}", *words[1:]]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
