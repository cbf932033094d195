"""The hall: what a dump holds, how it is stored, checked, decomposed, read in blocks and simulated."""
