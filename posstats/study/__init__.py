"""A study from its configuration: what is recorded, which analyses run, what they found."""
