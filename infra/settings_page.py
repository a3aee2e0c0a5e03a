"""docs/settings.md, made from the settings classes (`make docs`)."""

from __future__ import annotations

import sys
from pathlib import Path

from pydantic.fields import FieldInfo

from tideline import settings
from tideline.variables import OTHERS

CLASSES = (
    settings.ControlPlaneSettings,
    settings.ObjectStoreSettings,
    settings.KafkaSecuritySettings,
    settings.KafkaSettings,
    settings.PolicySettings,
    settings.PlacesSettings,
    settings.TemporalSettings,
    settings.GatewaySettings,
    settings.HistorySettings,
    settings.WorkerSettings,
    settings.RebuildSettings,
    settings.SchemaSettings,
    settings.ScheduleSettings,
    settings.JobsSettings,
    settings.AirflowSettings,
)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return "unset" if field.default is None else f"`{field.default}`"


def _bounds(field: FieldInfo) -> str:
    found = [
        f"{sign} {getattr(rule, name)}"
        for rule in field.metadata
        for name, sign in (("ge", "≥"), ("le", "≤"))
        if hasattr(rule, name)
    ]
    return ", ".join(found)


def render() -> str:
    """The whole page."""
    lines = [
        "# Settings",
        "",
        "Each is an environment variable, or a line `NAME=value` in the file that",
        "`TIDELINE_CONFIG` names, or in the embedded stack's `client.env` (in `TIDELINE_HOME`,",
        "default `.tideline`). The environment wins. Times are in ms, sizes in bytes. This page is",
        "made by `make docs`.",
        "",
        "A file whose name ends in `.toml` has the names in lower case and without the prefix, and",
        "may have a table for each cluster, whose values go over those of the top. `tideline",
        "--context NAME` or `TIDELINE_CONTEXT` chooses one, else `context` does; a context is",
        "refused where no such file is named.",
        "",
        "A name that nobody knows ends the process with exit code 2, wherever it stands, also",
        "without a value, and the message has the nearest known one. One that any process knows is",
        "right in the environment or file of each, so that one may serve several. What Kubernetes",
        "adds for a service of its own is passed over.",
        "",
        "```toml",
        'context = "staging"',
        'temporal_address = "temporal:7233"',
        "",
        "[contexts.staging]",
        'kafka_bootstrap = "kafka-1:9092,kafka-2:9092"',
        'postgres_dsn_file = "/run/secrets/staging-postgres"',
        "```",
        "",
        "A secret (connection strings, keys, passwords) may lie in a file of its own, alone:",
        "`TIDELINE_POSTGRES_DSN_FILE` in the environment or a file of lines, or",
        "`postgres_dsn_file`, names it. A process opens those of its own settings only.",
    ]
    for cls in CLASSES:
        own = [name for name in cls.__annotations__ if name in cls.model_fields]
        lines += ["", f"## {cls.__name__}", "", (cls.__doc__ or "").strip(), ""]
        lines += ["| variable | default | bounds | meaning |", "| --- | --- | --- | --- |"]
        for name in own:
            field = cls.model_fields[name]
            lines.append(
                f"| `TIDELINE_{name.upper()}` | {_default(field)} | {_bounds(field)} "
                f"| {field.description or ''} |"
            )
    lines += ["", "## Other names", "", "They are known, and no setting of a process.", ""]
    lines += ["| variable | what for |", "| --- | --- |"]
    lines += [f"| `{name}` | {what} |" for name, what in OTHERS.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render())
