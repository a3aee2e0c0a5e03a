"""From a bucket to a control plane: reads what objects say of themselves, reports it, writes it.

The rules are in ``tideline/domain`` (``rebuild.py``, ``rebuild_plan.py``); docs/restore.md is the
runbook.
"""
