"""Name each missing prerequisite and how to get it. Standard library only: runs before setup."""

import re
import shutil
import subprocess
import sys

PYTHON_MINIMUM = (3, 11)
JDK_MINIMUM = 17


def java_major(executable: str) -> int | None:
    run = subprocess.run([executable, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(\d+)', run.stderr + run.stdout)
    return int(found.group(1)) if found else None


def missing() -> list[str]:
    problems = []
    if sys.version_info < PYTHON_MINIMUM:
        problems.append(
            f"Python {sys.version_info.major}.{sys.version_info.minor} is too old: 3.11 or newer "
            "is needed (Debian: apt-get install python3; then make PYTHON=/usr/bin/python3.11 …)"
        )
    for tool, what, remedy in (
        ("java", "a JDK 17", "apt-get install openjdk-17-jdk-headless"),
        ("javac", "a JDK 17 (not only a JRE)", "apt-get install openjdk-17-jdk-headless"),
        ("cargo", "Rust 1.82 or newer", "apt-get install cargo (trixie), or Rust's installer"),
        ("mvn", "Maven 3.8 or newer", "apt-get install maven"),
    ):
        if shutil.which(tool) is None:
            problems.append(f"`{tool}` was not found: {what} is needed (Debian: {remedy})")
    java = shutil.which("java")
    if java and (major := java_major(java)) is not None and major < JDK_MINIMUM:
        problems.append(
            f"Java {major} is too old: JDK {JDK_MINIMUM} is needed "
            "(Debian: apt-get install openjdk-17-jdk-headless)"
        )
    return problems


if __name__ == "__main__":
    problems = missing()
    for problem in problems:
        print(f"missing prerequisite: {problem}", file=sys.stderr)
    sys.exit(1 if problems else 0)
