"""Seconds to plan GAP under node privacy, after start-up, against dp-accounting's own accountant.

The peer composes and calibrates the same events with dp-accounting's PLD accountant and its
calibration routine in the same run.

    python benchmarks/plan.py [--json]
"""

from __future__ import annotations

import argparse
import json
import time

import dp_accounting
from dp_accounting.pld import PLDAccountant

import tacit
from tacit.privacy.accounting import epsilon_pld

FACTS = tacit.PublicFacts(nodes=26_000, train_nodes=20_000, features=500, classes=6)
PAPER = {"preset": "paper", "hops": 2}


def ours(epsilon: float) -> tuple[float, tacit.Plan]:
    started = time.perf_counter()
    plan = tacit.GAP(tacit.Node(max_degree=100), epsilon, 1e-5, **PAPER).plan(FACTS)  # type: ignore[arg-type]
    return time.perf_counter() - started, plan


def peer(plan: tacit.Plan) -> tuple[float, float]:
    steps, rate = plan.stage("encoder").rounds, plan.stage("encoder").sampling_rate

    def event(scale: float) -> dp_accounting.DpEvent:
        gaussian = dp_accounting.GaussianDpEvent(scale)
        sampled = dp_accounting.PoissonSampledDpEvent(rate, gaussian)
        return dp_accounting.ComposedDpEvent(
            [
                dp_accounting.SelfComposedDpEvent(gaussian, 2),
                dp_accounting.SelfComposedDpEvent(sampled, 2 * steps),
            ]
        )

    started = time.perf_counter()
    scale = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant, event, plan.epsilon, plan.delta, tol=1e-3
    )
    return time.perf_counter() - started, float(scale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    epsilon_pld(dp_accounting.GaussianDpEvent(1.0), 1e-5)  # start-up is not planning
    rows = []
    for epsilon in (1.0, 4.0, 8.0):
        seconds, plan = ours(epsilon)
        theirs, scale = peer(plan)
        rows.append(
            {
                "epsilon": epsilon,
                "seconds": seconds,
                "dp_accounting_seconds": theirs,
                "ratio": theirs / seconds,
                "noise": plan.stages[0].noise_multiplier,
                "dp_accounting_noise": scale,
            }
        )
        if not args.json:
            print(
                f"eps {epsilon:g}: {seconds:.2f} s (target 1 s), dp-accounting {theirs:.2f} s, "
                f"{theirs / seconds:.0f} times; noise {rows[-1]['noise']:.5f} and {scale:.5f}"
            )
    if args.json:
        print(json.dumps({"rows": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
