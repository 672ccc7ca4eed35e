"""The seed systems, one file each. A new method is one file, one test file and one line here."""

from typing import Any

from tacit.methods.base import Fitted, Method
from tacit.methods.gap import GAP
from tacit.methods.gap_settings import GapSettings
from tacit.methods.mlp import MLP, MlpSettings
from tacit.methods.run import load_run, save_run

METHODS: dict[str, Any] = {"gap": GAP, "mlp": MLP}
SETTINGS: dict[str, Any] = {"gap": GapSettings, "mlp": MlpSettings}

__all__ = ["GAP", "METHODS", "MLP", "SETTINGS", "Fitted", "GapSettings", "Method", "MlpSettings"]
__all__ += ["load_run", "save_run"]
