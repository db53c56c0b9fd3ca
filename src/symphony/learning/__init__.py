"""Training of policies: rollouts, returns, updates; gradients of beliefs by the factors of the telemetry filter."""
