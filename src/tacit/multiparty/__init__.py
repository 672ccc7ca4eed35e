"""Nobody is trusted: private sums by parties that each hold only a share."""
