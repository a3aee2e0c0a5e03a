"""The table of options is what every trigger and the page say."""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from inspect import signature
from pathlib import Path

from tideline.airflow.wave import schemas
from tideline.cli.migrate import migrate
from tideline.domain.messages import TopicMigrationInput
from tideline.domain.migration_input import parse_options
from tideline.domain.options import OPTIONS, MigrationOptions, options_page

PAGE = Path("docs/operating.md").read_text()


def test_the_page_has_the_table_as_the_code_has_it() -> None:
    assert options_page() in PAGE


def test_the_input_on_the_page_is_every_default() -> None:
    [written] = re.findall(r"```json\n(\{.*?\n\})\n```", PAGE, re.DOTALL)
    given = asdict(TopicMigrationInput("orders"))
    assert json.loads(written) == {name: given[name] for name in ("topic", "options")}


def test_every_default_is_allowed() -> None:
    assert parse_options(asdict(MigrationOptions())) == MigrationOptions()


def test_a_wave_has_a_parameter_for_each_option() -> None:
    assert schemas(5).keys() >= OPTIONS.keys()


def test_the_command_line_has_an_option_for_each() -> None:
    assert signature(migrate).parameters.keys() >= OPTIONS.keys()
