"""What Airflow is told of this provider; each of its processes reads it, so it imports nothing."""

from __future__ import annotations

from typing import Any

PACKAGE = "tideline"
"""Airflow wants the name of the distribution."""
_HERE = "tideline.airflow.temporal"
_TEXT = {"type": ["string", "null"]}
_PEM = "PEM text, or the path of a PEM file where tasks and triggers run"


def get_provider_info() -> dict[str, Any]:
    """By ``provider_info.schema.json`` of Airflow."""
    return {
        "package-name": PACKAGE,
        "name": "Tideline",
        "description": "Operators, sensor, trigger and hook of Temporal workflows, and the jobs "
        "and migrations of Tideline.",
        "integrations": [
            {
                "integration-name": "Temporal",
                "external-doc-url": "https://docs.temporal.io/",
                "tags": ["service"],
            }
        ],
        "hooks": [{"integration-name": "Temporal", "python-modules": [f"{_HERE}.hook"]}],
        "operators": [{"integration-name": "Temporal", "python-modules": [f"{_HERE}.operators"]}],
        "sensors": [{"integration-name": "Temporal", "python-modules": [f"{_HERE}.sensor"]}],
        "triggers": [{"integration-name": "Temporal", "python-modules": [f"{_HERE}.trigger"]}],
        "extra-links": [
            f"{_HERE}.link.TemporalWorkflowLink",
            "tideline.airflow.spark_link.SparkUiLink",
        ],
        "connection-types": [
            {
                "connection-type": "temporal",
                "hook-name": "Temporal",
                "hook-class-name": f"{_HERE}.hook.TemporalHook",
                "ui-field-behaviour": {
                    "hidden-fields": ["schema", "login"],
                    "relabeling": {"password": "API key"},
                    "placeholders": {"host": "temporal.example.com", "port": "7233"},
                },
                "conn-fields": {
                    "namespace": {
                        "label": "Namespace",
                        "schema": {"type": ["string", "null"], "default": "default"},
                    },
                    "tls": {
                        "label": "TLS",
                        "description": "On by itself where there is an API key or a certificate",
                        "schema": {"type": ["boolean", "null"], "default": False},
                    },
                    "server_name": {
                        "label": "Server name",
                        "description": "In the server's certificate, if it is not the host",
                        "schema": _TEXT,
                    },
                    "server_ca": {
                        "label": "CA of the server",
                        "description": f"{_PEM}; empty: those of the system",
                        "schema": _TEXT,
                    },
                    "client_cert": {
                        "label": "Client certificate",
                        "description": _PEM,
                        "schema": _TEXT,
                    },
                    "client_key": {
                        "label": "Client key",
                        "description": _PEM,
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "ui": {
                        "label": "Address of the Temporal UI",
                        "description": "For links to workflows",
                        "schema": _TEXT,
                    },
                },
            }
        ],
    }
