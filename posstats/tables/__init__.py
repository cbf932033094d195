"""Tables of results as CSV, Markdown and LaTeX, and the headline."""
