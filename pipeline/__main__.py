"""`python -m pipeline` is the command `stepledger`."""

from pipeline.cli.app import main

main()
