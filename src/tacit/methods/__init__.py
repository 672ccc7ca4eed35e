"""The seed systems, one file each."""

from tacit.methods.base import Fitted, Method
from tacit.methods.gap import GAP

METHODS: dict[str, type[Method]] = {GAP.name: GAP}

__all__ = ["GAP", "METHODS", "Fitted", "Method"]
