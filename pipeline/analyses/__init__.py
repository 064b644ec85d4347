"""The questions the ledger was built for, answered from the marts: one module a question, formulas apart."""
