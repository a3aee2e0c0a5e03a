"""docs/rights.md, infra/kafka/acls and infra/s3, made from the tables of rights (`make docs`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tideline.domain.rights import (
    KAFKA_RIGHTS,
    S3_RIGHTS,
    Bucket,
    Process,
    Resource,
    acls_of,
    policy,
)

BUCKETS = {Bucket.DISKLESS: "tideline-diskless", Bucket.TIERED: "tideline-tiered"}
"""Names in the files; as TIDELINE_S3_BUCKET and TIDELINE_S3_TIERED_BUCKET have them by default."""

PAGE = """\
# Least rights

What the three kinds of processes have to be allowed, and what for. This page, the commands in
`infra/kafka/acls` and the policies in `infra/s3` are made by `make docs` from one table,
`tideline/domain/rights.py`. `tests/unit/test_rights.py` compares it with every Kafka request and
every S3 call that the code has, both ways: one that is not in the table, or a row that nothing
sends, fails. Postgres has its roles in `infra/postgres/grants.sql` ([control
plane](control-plane.md#roles-and-rights)). Commands (`tideline …`) have the rights of the worker,
jobs started by hand those of the jobs.

What a *client* asks is not here: it goes to Kafka over the client's own connection, under the
client's own rights.

That nothing more is needed is shown by what runs on a [secured stack](stack.md#a-secured-stack):
its gateway, worker and jobs are given these ACLs and policies and nothing else, and at the end
`tests/nightly/own_stack/test_secured.py` looks into the broker's log for a request of theirs that
Kafka refused. `tests/nightly/own_stack/test_install_page.py` does so after it has run the scripts
of `infra/kafka/acls` themselves.

## Kafka

Each process has one principal (`PRINCIPAL`, by default `User:tideline-gateway` and so on). Topics
are all topics that may ever migrate: put prefixes
(`--resource-pattern-type prefixed`) in the place of `*` if they have some. That the gateway has
to read topics is for DescribeProducers, of which Kafka asks it; it fetches nothing over its own
connections.

```sh
BROKERS='--bootstrap-server kafka-1:9092 --command-config admin.properties'
bash infra/kafka/acls/gateway.sh $BROKERS
bash infra/kafka/acls/worker.sh $BROKERS
bash infra/kafka/acls/jobs.sh $BROKERS
```
"""

S3_PAGE = """\

## S3

One identity for each process. Put your buckets and the two key prefixes (`TIDELINE_S3_PREFIX`,
`TIDELINE_S3_TIERED_PREFIX`) in the place of those in the files: keys below are below the prefix,
except where the table says *bucket*. `s3:ListBucket` is of a whole bucket. Nobody needs to make,
empty or drop a bucket, and only jobs delete; `tideline doctor` deletes what it has put, below
`doctor/`.

The policies are in the language of AWS (IAM).
"""


def commands(process: Process) -> str:
    """A script of ``kafka-acls.sh`` calls."""
    lines = [
        "#!/usr/bin/env bash",
        f"# The ACLs of the {process}: docs/rights.md. Made by `make docs`.",
        f"# PRINCIPAL=User:tideline-{process} bash {process}.sh --bootstrap-server HOST:PORT "
        "[--command-config FILE]",
        "set -euo pipefail",
        f': "${{PRINCIPAL:=User:tideline-{process}}}" "${{KAFKA_ACLS:=kafka-acls.sh}}"',
    ]
    by_resource: dict[tuple[Resource, str], list[str]] = {}
    for acl in acls_of(process):
        by_resource.setdefault((acl.resource, acl.name), []).append(acl.operation)
    for (resource, name), operations in by_resource.items():
        named = "--cluster" if resource is Resource.CLUSTER else f"--{resource} '{name}'"
        asked = " ".join(f"--operation {operation}" for operation in operations)
        lines.append(f'"$KAFKA_ACLS" "$@" --add --allow-principal "$PRINCIPAL" {asked} {named}')
    return "\n".join(lines) + "\n"


def _short(actions: frozenset[str]) -> str:
    return ", ".join(f"`{action.removeprefix('s3:')}`" for action in sorted(actions))


def render() -> str:
    """The whole page."""
    lines = [
        PAGE,
        "| request | right | gateway | worker | jobs |",
        "| --- | --- | --- | --- | --- |",
    ]
    for right in KAFKA_RIGHTS:
        named = "" if right.name == "*" else f" `{right.name}`"
        asked = f"{right.operation} {right.resource}{named}" if right.operation else "none"
        why = " | ".join(right.reasons.get(process, "–") for process in Process)
        lines.append(f"| {right.api} | {asked} | {why} |")
    lines += [
        S3_PAGE,
        "| process | bucket | keys | actions | what for |",
        "| --- | --- | --- | --- | --- |",
    ]
    for one in S3_RIGHTS:
        keys = f"`{one.keys}`" if one.keys else "–"
        below = keys if one.below_prefix else f"{keys} (bucket)"
        lines.append(
            f"| {one.process} | {one.bucket} | {below} | {_short(one.actions)} | {one.why} |"
        )
    return "\n".join(lines) + "\n"


def files() -> dict[Path, str]:
    """Everything that is made from the tables."""
    made = {Path("docs/rights.md"): render()}
    for process in Process:
        made[Path(f"infra/kafka/acls/{process}.sh")] = commands(process)
        found = policy(process, BUCKETS, dict.fromkeys(Bucket, ""))
        made[Path(f"infra/s3/{process}.json")] = json.dumps(found, indent=2) + "\n"
    return made


if __name__ == "__main__":
    for path, text in files().items():
        (Path(sys.argv[1]) / path).write_text(text)
