"""``make chart``: ``python -m infra.chart_check HELM KUBERNETES_VALIDATE``.

Lints and renders the chart with each file of values in its ``ci``. What comes out is held against
Kubernetes' own schemas, strictly, for the oldest and a newer version, and against the settings that
Tideline knows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from tideline.settings import GatewaySettings, JobsSettings, SchemaSettings, WorkerSettings
from tideline.settings_files import from_toml

CHART = Path("infra/helm/tideline")
VERSIONS = ("1.27", "1.34")
PREFIX = "TIDELINE_"
FIELDS = {
    name: field
    for kind in (GatewaySettings, WorkerSettings, JobsSettings, SchemaSettings)
    for name, field in kind.model_fields.items()
}
SECRETS = {name for name, field in FIELDS.items() if "SecretStr" in str(field.annotation)}
VARIABLES = {*FIELDS, *(f"{name}_file" for name in SECRETS), "config"}
"""Settings that a process takes, in lower case and without prefix."""


def run(*command: str) -> str:
    """Its stdout. Shows what it said and ends when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def unknown_settings(rendered: Path) -> list[str]:
    """Variables and settings files in the manifests that no process of Tideline would take."""
    wrong = []
    for document in filter(None, yaml.safe_load_all(rendered.read_text())):
        name = document["metadata"]["name"]
        pod = document.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", []):
            given = {e["name"].removeprefix(PREFIX).lower() for e in container["env"]}
            wrong += [f"{name}: {one}" for one in sorted(given - VARIABLES)]
        if text := document.get("data", {}).get("tideline.toml"):
            file = rendered.with_suffix(".toml")
            file.write_text(text)
            from_toml(file, None, FIELDS.keys(), SECRETS)
    return wrong


def main(helm: str, validate: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for values in sorted((CHART / "ci").glob("*-values.yaml")):
            run(helm, "lint", "--strict", str(CHART), "--values", str(values))
            for version in VERSIONS:
                made = Path(directory) / f"{values.stem}-{version}.yaml"
                arguments = ("--values", str(values), "--kube-version", f"{version}.0")
                made.write_text(run(helm, "template", "tideline", str(CHART), *arguments))
                run(validate, "--strict", "--kubernetes-version", version, str(made))
                if wrong := unknown_settings(made):
                    sys.exit(f"{values}: no settings of Tideline: {wrong}")
            print(f"{values}: linted, rendered, right for Kubernetes {', '.join(VERSIONS)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
