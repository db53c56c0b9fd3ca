"""Records, metrics, paired comparisons and reports."""
