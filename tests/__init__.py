"""Tests of stepledger; they mirror pipeline/ and sql/."""
