"""CartPole from Minari: a file of its form, `neorl train` on it by every discrete learner, and what policies return."""
