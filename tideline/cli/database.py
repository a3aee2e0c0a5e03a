"""``tideline db``: the schema of the control plane."""

from __future__ import annotations

from dataclasses import asdict

import typer
from pydantic import SecretStr

from tideline.cli.output import Format, FormatOption, echo, echo_json
from tideline.control_plane import migrate
from tideline.errors import ExitCode
from tideline.settings import SchemaSettings, load

app = typer.Typer(help="The schema in Postgres, which `tideline db migrate` brings up to date.")


@app.command("migrate")
def bring_up_to_date(output: FormatOption = Format.TABLE) -> None:
    """Bring the database to this version's schema, and set the passwords that the settings name.

    May be repeated, and run twice at once. Before gateways, workers and jobs of this version start.
    """
    settings = load(SchemaSettings)
    dsn = settings.schema_postgres_dsn.get_secret_value()
    before = migrate.state(dsn)
    migrate.refuse_second_installation(dsn)
    migrate.apply(dsn)
    passwords = _passwords(settings)
    migrate.provision_roles(dsn, passwords)
    if (limit := settings.schema_jobs_connections) is not None:
        migrate.limit_connections(dsn, "tideline_jobs", limit)
    if output is Format.JSON:
        echo_json({"applied": before.pending, "functions_replaced": not before.functions_agree,
                   "roles": sorted(passwords)})  # fmt: skip
        return
    for name in before.pending:
        echo(f"applied {name}")
    if not before.functions_agree:
        echo("replaced the functions and rights")
    for role in sorted(passwords):
        echo(f"role {role} has the password that was given")
    echo("The schema is that of this version.")


@app.command()
def check(output: FormatOption = Format.TABLE) -> None:
    """Whether the database has this version's schema; exit code 1 if not. Changes nothing."""
    found = migrate.state(load(SchemaSettings).schema_postgres_dsn.get_secret_value())
    if output is Format.JSON:
        echo_json({"up_to_date": found.up_to_date, **asdict(found)})
    else:
        echo(found.describe())
    if not found.up_to_date:
        raise typer.Exit(ExitCode.FAILED)


def _passwords(settings: SchemaSettings) -> dict[str, str]:
    given: dict[str, SecretStr | None] = {
        **{migrate.gateway_role(n): p for n, p in settings.gateway_passwords().items()},
        "tideline_worker": settings.schema_worker_password,
        "tideline_jobs": settings.schema_jobs_password,
    }
    return {role: p.get_secret_value() for role, p in given.items() if p is not None}
