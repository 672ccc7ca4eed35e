"""Tacit: graph neural networks under differential privacy, with the promise spelt out."""
