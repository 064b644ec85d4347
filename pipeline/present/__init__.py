"""Results on the terminal, as CSV, JSON and Markdown, and as exported files."""
