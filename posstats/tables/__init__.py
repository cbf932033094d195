"""Tables of results as JSON, CSV, Markdown, LaTeX and text, and the headline. What notebooks call is here."""

from posstats.results.table import Table, table_of, to_csv, to_json, to_latex, to_markdown, to_text, write_table

__all__ = ["Table", "table_of", "to_csv", "to_json", "to_latex", "to_markdown", "to_text", "write_table"]
