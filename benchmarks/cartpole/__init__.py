"""Train discrete learners on CartPole from a Minari dataset."""
