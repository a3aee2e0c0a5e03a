"""Commands whose parts are optional extras: imported only when they are asked for."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import typer

from tideline.errors import UsageError

PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""Options and ``--help`` belong to the command behind."""


@dataclass(frozen=True, slots=True)
class OptionalCommand:
    """``module:attribute`` is a Typer application, or a function to make one of."""

    name: str
    module: str
    attribute: str
    extras: str
    help: str

    def add_to(self, app: typer.Typer) -> None:
        """Register it under its name."""
        app.command(self.name, context_settings=dict(PASS_ON), help=self.help)(self._run)

    def _run(self, context: typer.Context) -> None:
        command = self._load()
        command(args=context.args, prog_name=f"tideline {self.name}")

    def _load(self) -> typer.Typer:
        try:
            found = getattr(importlib.import_module(self.module), self.attribute)
        except ModuleNotFoundError as error:
            raise UsageError(
                f"`tideline {self.name}` needs the Python module {error.name}: "
                f"pip install 'tideline[{self.extras}]'"
            ) from error
        if isinstance(found, typer.Typer):
            found.pretty_exceptions_enable = False
            return found
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command()(found)
        return alone
