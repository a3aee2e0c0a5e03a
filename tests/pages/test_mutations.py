"""Each row of the table of mutations is about code and a test that are there."""

from __future__ import annotations

import pytest

from tests.nightly.mutations.table import ROOT, Mutation, mutations
from tests.pages.references import has_test
from tests.pages.test_what_is_run import IN_TEST, NIGHTLY, below


@pytest.mark.parametrize("mutation", mutations(), ids=str)
def test_a_mutation_is_of_code_that_is_there_and_names_a_test_that_is_run(
    mutation: Mutation,
) -> None:
    file, _, name = mutation.test.partition("::")
    assert mutation.planted((ROOT / mutation.file).read_text())
    assert has_test(file, name.partition("[")[0])
    assert below(file, *IN_TEST, NIGHTLY)
