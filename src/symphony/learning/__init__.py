"""Training of policies: rollouts, returns, updates; gradients of beliefs by the parameters of a Bayesian network."""
