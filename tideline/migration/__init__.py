"""What the command line, Airflow, the activities and the worker share about migrations."""
