"""Federated offline RL: sites learn from their own rows and send changes of parameters, never rows."""
