"""The fault model: kinds of faults as records."""
