"""Data sources, one module each; whatever is registered here is a `data.source`."""
