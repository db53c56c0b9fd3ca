"""Programs for work on the project itself."""
