import pytest
import torch
from gradient_oracle import global_state
from torch import nn

from tacit.errors import TrainingError
from tacit.learn.networks import MLP
from tacit.learn.train import TrainConfig, predict_logits, train


def blobs(count: int = 120):
    draw = torch.Generator().manual_seed(5)
    targets = torch.randint(3, (count,), generator=draw)
    return (
        torch.randn(count, 4, generator=draw) + 2.0 * nn.functional.one_hot(targets, 4),
    ), targets


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("batch_size", [None, 32])
def test_learns(optimizer: str, batch_size: int | None) -> None:
    inputs, targets = blobs()
    model = MLP(4, 8, 3, 2, dropout=0.1, batch_norm=True)
    config = TrainConfig(40, 0.05, optimizer=optimizer, batch_size=batch_size)
    history = train(model, inputs, targets, config, seed=0)
    assert history.epochs_run == 40
    assert history.losses[-1] < history.losses[0]
    assert float((predict_logits(model, inputs).argmax(1) == targets).double().mean()) > 0.85


def test_full_batch_is_torch_step_for_step() -> None:
    inputs, targets = blobs()
    ours, theirs = MLP(4, 8, 3, 2), MLP(4, 8, 3, 2)
    train(ours, inputs, targets, TrainConfig(7, 0.1, weight_decay=0.01), seed=0)
    adam = torch.optim.Adam(theirs.parameters(), lr=0.1, weight_decay=0.01)
    for _ in range(7):
        adam.zero_grad()
        nn.functional.cross_entropy(theirs(*inputs), targets).backward()
        adam.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b)


def test_same_seed_same_weights_and_no_global_state() -> None:
    inputs, targets = blobs()
    before = global_state()
    results = []
    for seed in (1, 1, 2):
        model = MLP(4, 8, 3, 2, dropout=0.5)
        train(model, inputs, targets, TrainConfig(3, batch_size=16), seed=seed)
        results.append(model.stack[0].weight.detach())
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert global_state() == before


def test_early_stopping_restores_the_best_weights() -> None:
    inputs, targets = blobs()
    model = MLP(4, 16, 3, 2)
    kept = {}

    def keep(epoch: int, loss: float) -> None:
        kept[epoch] = [p.detach().clone() for p in model.parameters()]

    config = TrainConfig(200, 0.1, patience=5)
    history = train(model, inputs, targets, config, seed=0, val=blobs(60), on_epoch=keep)
    assert history.epochs_run == history.best_epoch + 6 < 200
    assert history.scores[history.best_epoch] == max(history.scores)
    for a, b in zip(model.parameters(), kept[history.best_epoch], strict=True):
        assert torch.equal(a, b)


def test_modes_are_restored_one_by_one() -> None:
    inputs, targets = blobs()
    model = MLP(4, 8, 3, 3, dropout=0.5)
    model.stack[1].eval()
    modes = [m.training for m in model.modules()]
    train(model, inputs, targets, TrainConfig(1), seed=0)
    predict_logits(model, inputs, batch_size=7)
    assert [m.training for m in model.modules()] == modes


def test_last_part_is_never_a_single_row() -> None:
    inputs, targets = blobs(33)
    train(MLP(4, 8, 3, 2, batch_norm=True), inputs, targets, TrainConfig(1, batch_size=16), seed=0)


def test_predictions_do_not_depend_on_the_parts() -> None:
    inputs, _ = blobs()
    model = MLP(4, 8, 3, 2)
    torch.testing.assert_close(
        predict_logits(model, inputs, batch_size=7), predict_logits(model, inputs)
    )


def test_soft_targets_and_frozen_parameters() -> None:
    inputs, targets = blobs()
    model = MLP(4, 8, 3, 2)
    model.stack[0].requires_grad_(False)
    before = model.stack[0].weight.clone()
    train(model, inputs, nn.functional.one_hot(targets, 3).float(), TrainConfig(3), seed=0)
    assert torch.equal(model.stack[0].weight, before)


def test_a_loss_that_is_no_number_is_refused() -> None:
    inputs, targets = blobs()
    inputs[0][0] = float("nan")
    with pytest.raises(TrainingError, match="loss is nan"):
        train(MLP(4, 8, 3, 2), inputs, targets, TrainConfig(3), seed=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"epochs": 0},
        {"epochs": 1, "learning_rate": 0.0},
        {"epochs": 1, "weight_decay": -1.0},
        {"epochs": 1, "batch_size": 0},
        {"epochs": 1, "optimizer": "lbfgs"},
        {"epochs": 1, "momentum": 0.9},
        {"epochs": 1, "patience": 0},
    ],
)
def test_refuses_nonsense(settings) -> None:
    with pytest.raises(TrainingError):
        TrainConfig(**settings)


def test_refuses_data_that_do_not_fit() -> None:
    inputs, targets = blobs()
    model = MLP(4, 8, 3, 2)
    for x, y in [((), targets), (inputs, targets[:-1]), (inputs, targets + 1), (inputs, -targets)]:
        with pytest.raises(TrainingError):
            train(model, x, y, TrainConfig(1), seed=0)
    with pytest.raises(TrainingError, match="patience"):
        train(model, inputs, targets, TrainConfig(2, patience=1), seed=0)
