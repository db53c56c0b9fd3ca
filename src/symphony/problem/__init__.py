"""Problem types: human form, array form, bounds and errors."""
