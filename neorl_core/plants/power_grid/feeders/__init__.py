"""Published radial feeders, besides the 33-bus feeder of the plant."""
