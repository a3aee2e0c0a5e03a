"""The executable rules of the control plane, as a plane of its own. tests/contract holds it and
Postgres to one suite."""

from tideline.control_plane.memory.plane import MemoryControlPlane

__all__ = ["MemoryControlPlane"]
