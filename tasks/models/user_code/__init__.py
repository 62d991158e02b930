"""User code of plants and algorithms: locating, digests, contract checks, import."""
