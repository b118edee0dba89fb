"""Reports of a comparison: console, Markdown, HTML, JSON. Columns and panels are each defined once."""
