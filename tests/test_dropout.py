"""The family's own dropout: what it drops and keeps, its gradient, and where PyTorch's runs in its place."""

import numpy as np
import pytest
import torch
from torch import nn

from modeling_leaner.dropout_leaner import Dropout, drop


SHAPE = (7, 11, 13, 17)  # an odd number of elements: the last random number serves fewer than four


def dropped_ones(p, seed=0, shape=(1_000_000,), dtype=torch.float32):
    torch.manual_seed(seed)
    return drop(torch.ones(shape, dtype=dtype), p, training=True)


@pytest.mark.parametrize("p", [0.02, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped(p):
    """Within five standard deviations, over all elements and over each of the four of a random number."""
    dropped = dropped_ones(p) == 0
    for elements in (dropped, *dropped.view(-1, 4).T):
        deviation = (p * (1 - p) / elements.numel()) ** 0.5
        assert elements.float().mean().item() == pytest.approx(p, abs=5 * deviation)


def test_elements_are_dropped_independently():
    """Of the four elements of a random number, and of those of the next: correlations within five deviations of 0."""
    dropped = (dropped_ones(0.5) == 0).float().view(-1, 8)
    correlations = torch.corrcoef(dropped.T) - torch.eye(8)
    assert correlations.abs().max() < 5 / dropped.shape[0] ** 0.5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_what_is_kept_is_scaled_and_so_is_its_gradient(dtype):
    values = torch.randn(SHAPE).to(dtype).requires_grad_()
    torch.manual_seed(0)
    result = drop(values, 0.25, training=True)
    result.sum().backward()
    kept = result != 0
    assert 0.7 < kept.float().mean() < 0.8
    assert result.dtype == dtype
    torch.testing.assert_close(result[kept], (values / 0.75)[kept])
    torch.testing.assert_close(values.grad, kept.to(dtype) / 0.75)


@pytest.mark.parametrize("p", [0.0, 1e-6, 1.0])
def test_a_probability_that_rounds_to_none_or_all_is_left_to_pytorch(p):
    torch.manual_seed(0)
    expected = nn.functional.dropout(torch.ones(1000), p)
    assert torch.equal(dropped_ones(p, shape=(1000,)), expected)


def test_the_generator_is_that_of_the_cpu():
    """Whatever device new tensors have by default; NumPy's own generator is left alone."""
    state = np.random.get_state()[1].tolist()
    values = torch.ones(1000)
    torch.manual_seed(0)
    with torch.device("meta"):
        result = drop(values, 0.5, training=True)
    assert torch.equal(result, dropped_ones(0.5, shape=(1000,)))
    assert np.random.get_state()[1].tolist() == state


def test_compiled_it_is_pytorchs():
    """One graph, in which the compiler draws the numbers."""
    compiled = torch.compile(Dropout(0.5), fullgraph=True, backend="eager")
    torch.manual_seed(0)
    result = compiled(torch.ones(1000))
    torch.manual_seed(0)
    assert torch.equal(result, nn.functional.dropout(torch.ones(1000), 0.5))
