"""Reports of a comparison, as console output, Markdown, HTML and JSON. Columns and panels are each defined once."""
