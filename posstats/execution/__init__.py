"""How work is run: threads, processes, clusters, progress, and the provenance of results."""
