"""Tables of results as CSV, Markdown, LaTeX and text, and the headline. What notebooks call is here."""

from posstats.tables.table import Table, rests_on, table_of, to_csv, to_latex, to_markdown, to_text, write_table

__all__ = ["Table", "rests_on", "table_of", "to_csv", "to_latex", "to_markdown", "to_text", "write_table"]
