"""Every error a user can meet: what is wrong, why, and what to do about it.

All of them derive from :class:`TacitError`, so ``except tacit.TacitError`` catches exactly what
Tacit refuses on purpose, and a bug still shows as what it is.
"""


class TacitError(Exception):
    """Something Tacit refuses to do.

    Args:
        what: What is wrong, in one sentence without a full stop.
        why: Why that is a problem.
        remedy: What to do instead.
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        self.what, self.why, self.remedy = what, why, remedy
        parts = (part.rstrip(".") + "." for part in (what, why, remedy) if part)
        super().__init__(" ".join(parts))


class GraphError(TacitError):
    """The graph given is not one Tacit can use: damaged, inconsistent or ambiguous input."""


class UnitError(TacitError):
    """This method or query cannot promise anything under this unit of privacy."""


class PlanError(TacitError):
    """No plan exists that meets the budget, or a plan does not fit what it is applied to."""


class BudgetError(TacitError):
    """The owner's privacy budget for this data set would be exceeded."""


class LedgerError(TacitError):
    """The ledger cannot be read or written, so nothing may be spent."""


class NoiseError(TacitError):
    """Noise cannot be drawn as the mechanism requires: overflow, bad scale, bad grid."""


class TrainingError(TacitError):
    """Training cannot proceed or produced something that is not a number."""


class ReleaseError(TacitError):
    """What is asked for may not leave, or a bundle is not what it says it is."""


class SessionError(TacitError):
    """A session of several parties cannot go on, or one of them was told something it refuses."""


class AttackError(TacitError):
    """An attack cannot be carried out: its target, its candidates or its answers do not fit."""
