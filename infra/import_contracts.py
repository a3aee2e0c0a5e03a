"""A kind of import contract that import-linter lacks: what a package may import, by name.

``source_modules``: packages with all that is in them. ``allowed``: modules with all that is in
them; what the source modules have of their own need not be named. Standard library counts.
"""

from __future__ import annotations

from typing import Any

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class OnlyContract(Contract):
    """Needs ``include_external_packages``, which knows others by their first name."""

    source_modules = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        sources: Any = self.source_modules
        allowed: Any = self.allowed
        beyond = [
            (importer, imported)
            for source in sources
            for importer in sorted({source, *graph.find_descendants(source)})
            for imported in sorted(graph.find_modules_directly_imported_by(importer))
            if not any(f"{imported}.".startswith(f"{name}.") for name in (*sources, *allowed))
        ]
        return ContractCheck(kept=not beyond, metadata={"beyond": beyond})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for importer, imported in check.metadata["beyond"]:
            output.print_error(f"{importer} imports {imported}, which it may not.")
