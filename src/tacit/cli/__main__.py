"""Run the command line as ``python -m tacit.cli``."""

from tacit.cli import main

main()
