"""Parts of the HTML document."""
