"""Estimators of the gradient of a belief by the parameters of any Bayesian network, and exact references.

dependence (graph) ──► nets (discrete, linear Gaussian) ──► estimators      measured by `python -m benchmarks.gradients`

Training uses two of them, on a network of one variable (`symphony/learning/beliefs.py`).
"""
