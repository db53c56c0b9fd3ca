"""Training of policies: rollouts, returns and updates; and gradients of beliefs by the parameters of a Bayesian network."""
