"""Learning: gradients of what is believed, with respect to the parameters of the Bayesian network that it came from."""
