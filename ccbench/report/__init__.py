"""Reports: figures as data, then files; tables for the screen, Markdown, CSV and nccl-tests' format."""
