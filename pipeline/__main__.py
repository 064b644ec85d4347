"""`python -m pipeline` is the command `stepledger`."""

from pipeline.cli import main

main()
