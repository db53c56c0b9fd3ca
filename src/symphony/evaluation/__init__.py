"""Metrics of runs, paired comparisons of policies, reports."""
