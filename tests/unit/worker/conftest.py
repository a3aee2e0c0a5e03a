"""The world of the activities is the worker's, too."""

from tests.unit.activities.conftest import world as world
