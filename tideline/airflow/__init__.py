"""The parts that the DAGs are made of: operators, a trigger, what all schedules share.

Airflow is imported here and in ``dags/`` only.
"""
