"""docs/studies/plants.md: what the plants are, what they are held against, and what their controllers come to."""
