"""The claims: their criteria, the evidence in a dump, the controls, and the verdicts."""
