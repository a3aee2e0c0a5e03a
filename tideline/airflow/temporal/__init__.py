"""Temporal for Airflow: a hook, operators, a sensor, a trigger, a link.

Knows Airflow and Temporal's client, and nothing of Tideline, whose own operators are subclasses.
Airflow finds it by the entry point ``apache_airflow_provider`` of the distribution ``tideline``.
"""
