"""The conformance suite that every method must pass, also one that Tacit does not know.

    from tacit.testing import CHECKS, Case

    CASE = Case(make=make, unit=tacit.Edge(), graph=graph)

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_conformance(check):
        check(CASE)

A check raises :class:`AssertionError` with a sentence, or :class:`NotApplicable` where a case says
nothing about it. :func:`check_method` runs all of them without pytest. See docs/conformance.md.
"""

from tacit.testing.case import Case, Maker, NotApplicable, RecordingSource, Witness, changed_node
from tacit.testing.checks import CHECKS, check_method

__all__ = [
    "CHECKS",
    "Case",
    "Maker",
    "NotApplicable",
    "RecordingSource",
    "Witness",
    "changed_node",
    "check_method",
]
