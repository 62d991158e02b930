"""ASGI applications around the servers: access control, MLflow's first page, SQLite retries, garbage collection."""
