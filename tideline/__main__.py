"""``python -m tideline``."""

from tideline.cli.app import main

main()
