"""Reading what enters a module: what comes out, and that nothing stays behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from attn_core.taps import reading_inputs


def test_the_input_of_a_module_is_read():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    given = torch.randn(5, 3, requires_grad=True)
    with reading_inputs(model[2]) as found:
        model(given)
    (entered,) = found
    assert not entered.requires_grad
    assert_close(entered, model[1](model[0](given)).detach())


def test_nothing_is_left_after_a_failure():
    model = nn.Linear(3, 4)
    with pytest.raises(RuntimeError), reading_inputs(model):
        model(torch.randn(2, 5))
    assert not model._forward_pre_hooks


def test_threads_read_their_own_calls_alone():
    model = nn.Linear(1, 1)

    def run(number: int) -> list[float]:
        with reading_inputs(model) as found:
            for _ in range(50):
                model(torch.tensor([[float(number)]]))
        return [float(tensor) for tensor in found]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, range(4)))
    assert results == [[float(number)] * 50 for number in range(4)]


def test_readings_nest():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    with reading_inputs(model[0]) as outer:
        with reading_inputs(model[1]) as inner:
            model(torch.zeros(1, 2))
        model(torch.ones(1, 2))
    assert len(inner) == 1
    assert [float(tensor.sum()) for tensor in outer] == [0.0, 2.0]
