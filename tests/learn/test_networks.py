import pytest
import torch

from tacit.errors import TrainingError
from tacit.learn.networks import MLP, HopClassifier, local_seed


def test_mlp_is_linear_and_selu_in_turn() -> None:
    model = MLP(5, 4, 3, 3)
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    first, second, last = model.stack[0], model.stack[2], model.stack[4]
    wanted = last(torch.selu(second(torch.selu(first(x)))))
    assert torch.equal(model(x), wanted)


def test_one_layer_is_linear_whatever_else_is_asked() -> None:
    assert len(MLP(5, 4, 3, 1, dropout=0.5, batch_norm=True).stack) == 1


@pytest.mark.parametrize(("combine", "width"), [("concat", 12), ("sum", 4), ("attention", 12)])
@pytest.mark.parametrize("normalise", [False, True])
def test_hop_classifier_shapes(combine: str, width: int, normalise: bool) -> None:
    model = HopClassifier([5, 6, 7], 4, 3, combine=combine, normalise=normalise)
    hops = [torch.ones(2, k) for k in (5, 6, 7)]
    assert model(*hops).shape == (2, 3)
    assert model.head.stack[0].in_features == width


def test_attention_weighs_the_hops_of_one_node() -> None:
    """Rows do not mix: the published code takes its softmax over nodes instead of hops."""
    model = HopClassifier([5, 5], 4, 3, combine="attention")
    x = torch.randn(6, 5, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([model(x[i : i + 1], x[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(model(x, x), alone)


def test_initial_weights_depend_on_the_seed_alone() -> None:
    before = torch.get_rng_state()
    one, two, other = (HopClassifier([5, 5], 4, 3, combine="attention", seed=s) for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for a, b, c in zip(one.parameters(), two.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)
    assert not torch.equal(one.bases[0].stack[0].weight, one.bases[1].stack[0].weight)


def test_local_seed_restores_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError), local_seed(1):
        torch.rand(1) @ torch.rand(2)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MLP(0, 4, 3, 1),
        lambda: MLP(5, 4, 3, 0),
        lambda: MLP(5, 4, 3, 2, dropout=1.0),
        lambda: MLP(5, 4, 3, 2, activation="gelu"),
        lambda: HopClassifier([], 4, 3),
        lambda: HopClassifier([5], 4, 3, combine="mean"),
        lambda: HopClassifier([5, 5], 4, 3)(torch.ones(1, 5)),
    ],
)
def test_refuses_nonsense(make) -> None:
    with pytest.raises(TrainingError):
        make()
