"""Programs beside the tests: documents, demo, fuzzing, crashes, faults, soak."""
