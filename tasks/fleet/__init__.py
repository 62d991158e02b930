"""A fleet: how each site stands, how sites compare, and the page that shows it."""
