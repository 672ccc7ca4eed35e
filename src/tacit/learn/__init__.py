"""How models learn: plain networks, plain training, DP-SGD. Knows nothing of graphs or budgets.

The modules here load torch, so import them by name (``from tacit.learn.networks import MLP``).
"""
