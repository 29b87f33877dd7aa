"""The report as one self-contained HTML file, or as one page of Markdown."""
