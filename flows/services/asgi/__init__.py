"""ASGI applications around the servers: who may speak to them, what pages begin with, and writes that wait."""
