"""Published radial feeders, in addition to the plant's 33-bus feeder."""
