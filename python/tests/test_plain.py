"""The short way of plain calls: the same bits as the operators, and no surprises when what a call
was prepared for has changed meanwhile."""

import pytest
import rota
import torch
from conftest import random_inputs, same_bits
from rota import _ops, _plain, _plans

NOTHING = (None, None, None, None, None, [], "", "")


def by_operator(q, k, v, mask, heads_first):
    if heads_first:
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    o, lse = _ops.attention_op(q, k, v, *NOTHING, mask, "", 0.0, True)
    return (o.transpose(1, 2) if heads_first else o), lse


def inputs_of(heads_first, **options):
    q, k, v = random_inputs(2, 33, 40, 4, 2, 16, **options)
    if not heads_first:
        return [q, k, v]
    return [t.detach().transpose(1, 2).requires_grad_() for t in (q, k, v)]


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
@pytest.mark.parametrize("contiguous", [False, True])
def test_first_and_later_calls_agree_with_the_operator(layout, contiguous):
    heads_first = layout == "bhsd"
    q, k, v = inputs_of(heads_first)
    if contiguous:
        q, k, v = (t.detach().contiguous().requires_grad_() for t in (q, k, v))
    wanted, wanted_lse = by_operator(q, k, v, "causal", heads_first)
    d_o, d_lse = torch.randn_like(wanted), torch.randn_like(wanted_lse)
    exact = torch.autograd.grad(wanted, (q, k, v), d_o, retain_graph=True)
    exact_too = torch.autograd.grad((wanted, wanted_lse), (q, k, v), (d_o, d_lse))
    for _ in range(3):
        o = rota.attention(q, k, v, mask="causal", layout=layout)
        assert same_bits(o, wanted) and o.stride() == wanted.stride()
        found = torch.autograd.grad(o, (q, k, v), d_o)
        for a, b, t in zip(found, exact, (q, k, v)):
            assert same_bits(a, b) and a.stride() == b.stride() and a.shape == t.shape
        o, lse = rota.attention(q, k, v, mask="causal", layout=layout, return_lse=True)
        assert same_bits(lse, wanted_lse)
        for a, b in zip(torch.autograd.grad((o, lse), (q, k, v), (d_o, d_lse)), exact_too):
            assert same_bits(a, b)


def test_other_strides_and_addresses_are_noticed():
    q, k, v = (t.detach() for t in random_inputs(2, 33, 40, 4, 2, 16))
    wanted = rota.attention(q, k, v, mask="causal")
    odd = torch.cat((q.new_zeros(1), q.flatten()))[1:].view(q.shape)
    wide = torch.stack((q, q), -1)[..., 0]  # the head dim's stride is 2
    for _ in range(2):
        for other in (q, odd, wide, q.transpose(0, 1).contiguous().transpose(0, 1)):
            assert torch.allclose(rota.attention(other, k, v, mask="causal"), wanted, atol=1e-6)


def test_a_dropped_plan_is_made_again(monkeypatch):
    monkeypatch.setattr(_plans._plans, "bound", 2)
    q, k, v = (t.detach() for t in random_inputs(1, 29, 29, 1, 1, 8))
    wanted = rota.attention(q, k, v, mask="causal")
    for length in range(2, 12):
        rota.attention(*(t.detach() for t in random_inputs(1, length, length, 1, 1, 8)))
    assert len(_plans._plans.entries) == 2
    assert same_bits(rota.attention(q, k, v, mask="causal"), wanted)


def test_plans_in_use_are_dropped_last(monkeypatch):
    monkeypatch.setattr(_plans._plans, "bound", 3)
    q, k, v = (t.detach() for t in random_inputs(1, 31, 31, 1, 1, 8))
    made = []
    make = _plans.Plan.__init__
    monkeypatch.setattr(_plans.Plan, "__init__", lambda *a: (made.append(a[2].n_q), make(*a))[1])
    for length in range(2, 12):
        rota.attention(q, k, v, mask="causal")
        rota.attention(*(t.detach() for t in random_inputs(1, length, length, 1, 1, 8)))
    assert made.count(31) == 1 and len(made) == 11


def test_recipes_are_bounded(monkeypatch):
    monkeypatch.setattr(_plain, "_RECIPES_KEPT", 4)
    for length in range(2, 20):
        inputs = random_inputs(1, length, length, 1, 1, 8)
        for _ in range(2):
            o = rota.attention(*inputs, mask="causal & window(5, 0)")
            torch.autograd.grad(o, inputs, torch.ones_like(o))
    recipes = _plain._options("causal & window(5, 0)", None, None, True, False).recipes
    assert 1 <= len(recipes) <= 4 and all(len(r.backwards) == 1 for r in recipes.values())


def test_saved_tensors_may_come_back_with_other_strides():
    q, k, v = inputs_of(True)
    o = rota.attention(q, k, v, layout="bhsd")
    exact = torch.autograd.grad(o.square().sum(), (q, k, v))
    for back in (torch.clone, torch.Tensor.contiguous, torch.clone):
        for _ in range(3):
            with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), back):
                o = rota.attention(q, k, v, layout="bhsd")
            for a, b in zip(torch.autograd.grad(o.square().sum(), (q, k, v)), exact):
                assert torch.allclose(a, b, atol=1e-5)


def test_an_input_given_other_strides_before_the_backward_pass_is_noticed():
    q, k, v = random_inputs(1, 16, 16, 1, 1, 16)
    d_o = torch.randn(1, 16, 1, 16)
    for _ in range(3):
        o = rota.attention(q, k, v)
        before = q.data
        q.data = q.data.transpose(1, 3)
        exact = q.detach().clone().requires_grad_()
        found = torch.autograd.grad(o, (q, k, v), d_o)
        q.data = before
        o = rota.attention(q, k, v)
        q.data = exact.data  # other memory, the same values
        assert all(same_bits(a, b) for a, b in zip(found, torch.autograd.grad(o, (q, k, v), d_o)))
        q.data = before


def test_a_result_changed_in_place_is_noticed():
    q, k, v = inputs_of(True)
    for _ in range(2):
        o = rota.attention(q, k, v, layout="bhsd")
        o += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            o.sum().backward()


def test_an_input_changed_before_the_backward_pass_is_refused():
    q, k, v = inputs_of(False)
    scaled = 2 * q
    o = rota.attention(scaled, k, v)
    scaled.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_forward_mode_derivatives_are_refused():
    q, k, v = (t.detach() for t in inputs_of(False))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(q, torch.ones_like(q))
        with pytest.raises((RuntimeError, NotImplementedError)):
            rota.attention(dual, k, v)


def test_a_tensor_that_outlived_its_transform():
    k, v = torch.randn(2, 1, 4, 1, 8, requires_grad=True).unbind()
    left = []
    x = torch.randn(1, 4, 1, 8)
    torch.func.grad(lambda x: left.append(x) or x.sum())(x)
    wanted = rota.attention(x, k, v)
    assert same_bits(rota.attention(left[0], k, v), wanted)
    with torch.no_grad():
        assert same_bits(rota.attention(left[0], k, v), wanted)


def test_nothing_wants_a_gradient():
    q, k, v = (t.detach() for t in inputs_of(False))
    assert rota.attention(q, k, v).grad_fn is None
    assert rota.attention(q, k, v.clone().requires_grad_()).grad_fn is not None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_autocast(dtype):
    q, k, v = (t.detach() for t in random_inputs(1, 9, 9, 2, 2, 8, dtype=dtype))
    for _ in range(2):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert rota.attention(q, k, v).dtype == torch.bfloat16
        assert rota.attention(q, k, v).dtype == dtype
