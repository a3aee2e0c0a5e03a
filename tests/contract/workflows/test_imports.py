"""Workflow modules import nothing that could make a replay differ. Workers run them without
Temporal's sandbox (docs/decisions/0005-workflow-shape.md): nothing else refuses a call into the
system."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

import workflows

MODULES = sorted(Path(workflows.__file__).parent.glob("*.py"))
ALLOWED = {"temporalio", "workflows", *sys.stdlib_module_names}


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.stem)
def test_a_workflow_module_imports_the_standard_library_temporal_and_the_domain_only(
    module: Path,
) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        for name in names:
            assert name.split(".")[0] in ALLOWED or name.startswith("tideline.domain"), name
