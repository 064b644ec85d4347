"""stepledger: where does a decode step's time go?"""

__version__ = "0.3.0"
