"""Reports as console output, Markdown, HTML, JSON and CSV."""
