"""What every job does first never costs it its run but where it must."""

from __future__ import annotations

from typing import cast

from spark.common.owned import look_at_grown_tables
from tideline.control_plane.errors import ControlPlaneUnavailable
from tideline.control_plane.jobs import JobsControlPlane


class Slow:
    """Its disks take longer than a statement may."""

    asked = 0

    def refresh_statistics(self) -> list[str]:
        self.asked += 1
        raise ControlPlaneUnavailable("canceling statement due to statement timeout")


def test_tables_that_take_too_long_to_look_at_fail_no_job() -> None:
    plane = Slow()
    look_at_grown_tables(cast(JobsControlPlane, plane))
    assert plane.asked == 1
