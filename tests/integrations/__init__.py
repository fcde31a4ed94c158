"""Other tools as they are installed: what is absent is skipped with one line."""
