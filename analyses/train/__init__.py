"""The adapted trio: one model continued for a short while under three architectures, several training runs of each."""
