"""The tiering pipeline, split then merge, in one run: ``python -m spark.tiering``."""

from __future__ import annotations

from dataclasses import asdict

import typer

from spark.common.entry import (
    ConfOption,
    DryRunOption,
    Job,
    MasterOption,
    Outcome,
    ResultOption,
    TopicsOption,
    launch,
    run_job,
)
from spark.tiering.merge import merge_all, ready, told
from spark.tiering.split import eligible, split_all
from tideline.control_plane.jobs import connect_jobs
from tideline.kafka.topic_policies import read_tiering_policies, suffix_topics

APPLICATION = "tideline-tiering"


def work(job: Job, topics: tuple[str, ...] = (), *, dry_run: bool = False) -> Outcome:
    """The whole job."""
    with connect_jobs(job.settings, application_name=APPLICATION) as plane:
        rules = read_tiering_policies(job.settings, suffix_topics(plane, topics))
        job.progress(f"{len(rules.configs)} topics")
        if dry_run:
            return Outcome(
                {
                    "eligible": eligible(plane, rules),
                    "ready": told(ready(plane, rules, job.settings)),
                    "left_alone": rules.left_alone,
                }
            )
        split = split_all(job, plane, rules)
        merge = merge_all(job, plane, rules)
    complaints = [text for text in (split.complaint, merge.complaint) if text]
    return Outcome(
        {"split": asdict(split), "merge": asdict(merge), "left_alone": rules.left_alone},
        "; ".join(complaints) or None,
    )


def tiering(
    topic: TopicsOption = None,
    dry_run: DryRunOption = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    result: ResultOption = None,
) -> None:
    """Turn aged diskless data into tiered segments: split, then merge."""
    code = run_job(
        "tiering",
        lambda job: work(job, tuple(topic or ()), dry_run=dry_run),
        launch(master, conf, result),
    )
    raise typer.Exit(code)
