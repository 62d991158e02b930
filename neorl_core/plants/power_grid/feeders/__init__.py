"""Published radial feeders besides the one that the plant is."""
