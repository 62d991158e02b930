"""Around the servers: who may speak to them, what pages begin with, writes that wait, and garbage."""
