"""``make chart``: ``python -m infra.chart_check HELM KUBERNETES_VALIDATE``.

Lints and renders the chart with each file of values in its ``ci``. What comes out is held against
Kubernetes' own schemas, strictly, for the oldest and a newer version. Whether Tideline takes it
``tests/contract/programs/test_chart_rendered.py`` says.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

CHART = Path("infra/helm/tideline")
VERSIONS = ("1.27", "1.34")


def run(*command: str) -> str:
    """Its stdout. Shows what it said and ends when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(helm: str, validate: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for values in sorted((CHART / "ci").glob("*-values.yaml")):
            run(helm, "lint", "--strict", str(CHART), "--values", str(values))
            for version in VERSIONS:
                made = Path(directory) / f"{values.stem}-{version}.yaml"
                arguments = ("--values", str(values), "--kube-version", f"{version}.0")
                made.write_text(run(helm, "template", "tideline", str(CHART), *arguments))
                run(validate, "--strict", "--kubernetes-version", version, str(made))
            print(f"{values}: linted, rendered, right for Kubernetes {', '.join(VERSIONS)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
