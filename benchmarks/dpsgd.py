"""Seconds per epoch of DP-SGD: Tacit, Opacus's default mode, and the plain PyTorch loop.

Same network, same expected batch, same Adam, in one process, interleaved. The best of several
repeats counts, as in timeit, because whatever else the machine does only ever adds.
Integer noise from the cryptographic stream is counted in Tacit's time. Opacus's Poisson loader and
wrappers are set up outside its time, Tacit's own set-up inside its.

    python benchmarks/dpsgd.py [--quick] [--threads N] [--json]

Targets: at least 5 times as fast as Opacus, within 2 times of the plain loop.
"""

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from tacit.learn.dpsgd import DpSgdConfig, train_private
from tacit.learn.networks import MLP
from tacit.privacy.noise import NoiseSource

ROWS, WIDTH, HIDDEN, CLASSES, LAYERS = 15_000, 346, 64, 10, 3
RATE = 1e-3


def network() -> MLP:
    return MLP(WIDTH, HIDDEN, CLASSES, LAYERS)


def tacit_epochs(x: Tensor, y: Tensor, batch: int, noise: float) -> Callable[[int], None]:
    model, source = network(), NoiseSource.fresh()

    def run(epochs: int) -> None:
        steps = epochs * math.ceil(len(y) / batch)
        config = DpSgdConfig(batch / len(y), steps, noise, learning_rate=RATE)
        train_private(model, (x,), y, config, source=source, seed=0)

    return run


def opacus_epochs(x: Tensor, y: Tensor, batch: int) -> Callable[[int], None]:
    from opacus import PrivacyEngine

    model = network()
    wrapped, adam, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.Adam(model.parameters(), lr=RATE),
        data_loader=DataLoader(TensorDataset(x, y), batch_size=batch),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )

    def run(epochs: int) -> None:
        for _ in range(epochs):
            for rows, targets in loader:
                adam.zero_grad()
                nn.functional.cross_entropy(wrapped(rows), targets).backward()
                adam.step()

    return run


def plain_epochs(x: Tensor, y: Tensor, batch: int, loader: bool) -> Callable[[int], None]:
    model = network()
    adam = torch.optim.Adam(model.parameters(), lr=RATE)
    batches = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)

    def gathered():
        for rows in torch.randperm(len(y)).split(batch):
            yield x.index_select(0, rows), y.index_select(0, rows)

    def run(epochs: int) -> None:
        for _ in range(epochs):
            for rows, targets in batches if loader else gathered():
                adam.zero_grad()
                nn.functional.cross_entropy(model(rows), targets).backward()
                adam.step()

    return run


def measure(batch: int, repeats: int, epochs: int) -> dict[str, float]:
    """Best seconds per epoch of every contender."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, WIDTH, generator=draw)
    y = torch.randint(CLASSES, (ROWS,), generator=draw)
    contenders = {
        "plain": plain_epochs(x, y, batch, loader=False),
        "plain, DataLoader": plain_epochs(x, y, batch, loader=True),
        "tacit": tacit_epochs(x, y, batch, 1.0),
        "tacit, no noise": tacit_epochs(x, y, batch, 0.0),
        "opacus": opacus_epochs(x, y, batch),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for run in contenders.values():
        run(1)
    for _ in range(repeats):
        for name, run in contenders.items():
            # Opacus is slow and steady: one epoch at a time.
            count = 1 if name == "opacus" else epochs
            start = time.perf_counter()
            run(count)
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: min(values) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description="DP-SGD against Opacus and the plain loop.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 is torch's choice")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    arguments = parser.parse_args()
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    warnings.simplefilter("ignore")
    results = []
    print(f"{ROWS} rows x {WIDTH}, hidden {HIDDEN}, {LAYERS} layers", end=", ")
    print(f"torch threads {torch.get_num_threads()}; seconds per epoch")
    for batch in (256, 2048):
        repeats, epochs = (5, 2) if arguments.quick else (15, 4)
        seconds = measure(batch, repeats, epochs * (4 if batch == 2048 else 1))
        print(f"\nexpected batch {batch}")
        for name, value in seconds.items():
            print(f"  {name:<20}{value:9.4f}  {value / seconds['plain']:6.2f} x plain")
        faster, slower = seconds["opacus"] / seconds["tacit"], seconds["tacit"] / seconds["plain"]
        print(f"  {faster:.1f} times as fast as Opacus (target 5)", end=", ")
        print(f"{slower:.2f} times the plain loop (target at most 2)")
        results.append(
            {
                "batch": batch,
                "seconds_per_epoch": seconds,
                "times_as_fast_as_opacus": faster,
                "times_plain": slower,
                "met": faster >= 5 and slower <= 2,
            }
        )
    if arguments.json:
        print(json.dumps({"threads": torch.get_num_threads(), "results": results}))


if __name__ == "__main__":
    main()
