"""Tables of results as JSON, CSV, Markdown, LaTeX and text, and the headline."""

from posstats.tables.table import Table as Table
from posstats.tables.table import table_of as table_of
from posstats.tables.table import to_csv as to_csv
from posstats.tables.table import to_json as to_json
from posstats.tables.table import to_latex as to_latex
from posstats.tables.table import to_markdown as to_markdown
from posstats.tables.table import to_text as to_text
from posstats.tables.table import write_table as write_table
