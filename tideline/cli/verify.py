"""``tideline verify``: is what object storage holds of a topic what gateways serve?"""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.table import Table

from spark.verify.job import SampleOption
from spark.verify.job import verify as verify_job
from tideline.cli.jobs import finish, run_here
from tideline.cli.output import Format, FormatOption, console, echo_json, line, topic_name


def verify(
    topic: Annotated[str, typer.Argument(help="A topic of which every partition has its B0.")],
    sample: SampleOption = 1.0,
    output: FormatOption = Format.TABLE,
) -> None:
    """Read TOPIC from object storage and through the gateways, and compare every record."""
    name = topic_name(topic)
    outcome = run_here("verify", lambda job: verify_job(job, [name], sample), whole=False)
    if output is Format.JSON:
        echo_json(outcome.details)
    else:
        show(outcome.details)
    finish(outcome)


def show(details: Any) -> None:
    """What was compared, then each difference that is named."""
    screen = console()
    table = Table(
        "topic", "partitions", "ranges", "batches", "records", "bytes", "differences",
        box=None, pad_edge=False,
    )  # fmt: skip
    for one in details["topics"]:
        color = "red" if one["differences"] else "green"
        cells = (str(one[key]) for key in ("partitions", "ranges", "batches", "records", "bytes"))
        table.add_row(one["topic"], *cells, line(str(one["differences"]), color))
    screen.print(table)
    for one in details["topics"]:
        if one["gone"]:
            screen.print(f"{one['topic']}: retention has removed {one['gone']} ranges meanwhile")
        for found in one["first_differences"]:
            where = f"{one['topic']}-{found['partition']} at offset {found['offset']}"
            screen.print(f"{where}: {found['what']}")
        if (more := one["differences"] - len(one["first_differences"])) > 0:
            screen.print(f"{one['topic']}: {more} more")
    for name, reason in details["left_alone"].items():
        screen.print(f"left alone: {name}: {reason}")
