"""What autograd holds is told, and telling it keeps nothing alive."""

from __future__ import annotations

import gc
import threading

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from fleetcraft.calibration.tracking.autograd import SavedTensors
from fleetcraft.calibration.tracking.ledger import Ledger
from tests.calibration.tracking.toys import KIB, floats, tracking, train_step, transformer


def test_what_a_graph_holds_is_autograds_and_goes_with_the_backward_pass() -> None:
    with tracking() as ledger:
        weight = floats(8).requires_grad_()
        ledger.own("model", weight)
        ledger.begin_phase("forward1")
        loss = weight.exp().sin().sum()  # exp keeps its result, sin what it was given: the same
        forward = ledger.end_phase()
        ledger.begin_phase("backward1")
        loss.backward()
        backward = ledger.end_phase()
    assert forward.autograd_bytes == 8 * KIB
    assert {o.name: o.live_end_bytes for o in forward.owners if o.live_end_bytes} == {
        "model": 8 * KIB,
        "autograd": 8 * KIB,
        "unowned:forward1": 4,
    }
    assert backward.autograd_bytes == 0
    assert ledger.saved_bytes == 0
    assert backward.live_end_bytes == 16 * KIB + 4


def test_what_a_root_reaches_is_not_autograds_though_it_is_saved() -> None:
    with tracking() as ledger:
        weight = floats(8).requires_grad_()
        ledger.own("model", weight)
        ledger.begin_phase("forward1")
        loss = (weight * weight).sum()
        assert ledger.saved_bytes == 8 * KIB
        assert ledger.end_phase().autograd_bytes == 0
    del loss


def test_a_loop_without_no_grad_retains_and_one_with_it_does_not() -> None:
    model = transformer()
    retained = {}
    for grad in (True, False):
        with tracking() as ledger:
            ledger.own("model", model)
            ledger.begin_phase("denoise")
            latents = torch.zeros(1, 16, 64)
            with torch.set_grad_enabled(grad):
                for _ in range(3):
                    latents = latents - 0.1 * model(latents)
            retained[grad] = ledger.end_phase().autograd_bytes
            del latents
    assert retained[False] == 0
    assert retained[True] > 100 * KIB


@pytest.mark.parametrize("backward", [True, False])
def test_memory_returns_to_the_start(backward: bool) -> None:
    model = transformer()
    tokens = torch.randn(1, 16, 64)
    with tracking() as ledger:
        ledger.adopt([model, tokens])
        before = ledger.live_bytes
        loss = model(tokens).square().mean()
        held = ledger.live_bytes
        if backward:
            loss.backward()
            model.zero_grad()
        del loss
        assert held > before
        assert ledger.live_bytes == before  # without a collection: no cycle was made
        assert ledger.saved_bytes == 0


def test_hooks_that_do_not_detach_would_leak() -> None:
    with Ledger("cpu") as ledger:
        weight = floats(8).requires_grad_()
        before = ledger.live_bytes
        with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            result = weight.exp()
        del result
        gc.collect()
        assert ledger.live_bytes == before + 8 * KIB  # what this module exists to avoid
        with SavedTensors(ledger):
            result = weight.exp()
        del result
        assert ledger.live_bytes == before + 8 * KIB


def test_gradients_are_the_same_with_and_without_tracking() -> None:
    torch.manual_seed(0)
    model = transformer()
    tokens = torch.randn(1, 16, 64)
    model(tokens).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    with tracking():
        model(tokens).square().mean().backward()
    tracked = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(torch.equal(a, b) for a, b in zip(plain, tracked, strict=True))


def test_a_graph_that_is_kept_for_a_second_pass_is_still_autograds() -> None:
    with tracking() as ledger:
        weight = floats(8).requires_grad_()
        result = weight.exp()
        result.sum().backward(retain_graph=True)
        assert ledger.saved_bytes == 8 * KIB
        (second,) = torch.autograd.grad(result.sum(), weight, create_graph=True)
        second.sum().backward()
        del result, second
        assert ledger.saved_bytes == 0


def test_hooks_of_the_work_itself_take_precedence() -> None:
    model = transformer()
    tokens = torch.randn(1, 16, 64)
    held = {}
    for saving in (False, True):
        with tracking() as ledger:
            ledger.own("model", model)
            ledger.begin_phase("forward")
            out = checkpoint(model, tokens, use_reentrant=False) if saving else model(tokens)
            held[saving] = ledger.end_phase().autograd_bytes
            out.square().mean().backward()
            del out
            assert ledger.saved_bytes == 0
    assert held[True] < held[False] / 10


def test_on_cpu_a_backward_pass_runs_in_the_thread_that_asked_for_it() -> None:
    threads: list[int] = []
    with tracking() as ledger:
        weight = floats(8).requires_grad_()
        result = weight * 2
        result.register_hook(lambda gradient: threads.append(threading.get_ident()))
        before = ledger.live_bytes
        result.sum().backward()
        assert threads == [threading.get_ident()]
        assert ledger.live_bytes == before + 8 * KIB


def test_leaving_the_hooks_takes_them_away() -> None:
    model = transformer()
    optimizer = torch.optim.SGD(model.parameters())
    with tracking() as ledger:
        pass
    train_step(model, optimizer, torch.randn(1, 16, 64))
    assert ledger.live_bytes == ledger.saved_bytes == 0
