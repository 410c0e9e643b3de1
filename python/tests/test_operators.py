"""The custom operators as torch sees them: opcheck, compilation, autocast, transforms."""

import threading

import pytest
import rota
import torch
from conftest import random_inputs, same_bits
from rota import _call, _host, _ops, _plans

NOTHING = (None,) * 5
PLAIN = (*NOTHING, [], "", "", "causal", "", 0.0, True)


def opcheck(op, arguments):
    results = torch.library.opcheck(op, arguments)
    assert set(results.values()) == {"SUCCESS"}, results


def test_opcheck_dense():
    q, k, v = random_inputs(2, 33, 40, 4, 2, 16)
    opcheck(torch.ops.rota.attention, (q, k, v, *PLAIN))
    opcheck(torch.ops.rota.attention, (q.detach(), k, v.detach(), *PLAIN))


def test_opcheck_packed_with_everything():
    q, k, v = (t[0].detach().requires_grad_() for t in random_inputs(1, 33, 40, 4, 2, 16))
    offsets = torch.tensor([0, 10, 33], dtype=torch.int32), torch.tensor([0, 12, 40])
    sink, slope = torch.randn(4, requires_grad=True), torch.rand(4)
    ids = torch.zeros(2, 28, dtype=torch.int32)
    rest = (*offsets, None, None, sink, [slope, ids], "slope,document", "", "causal & document",
            "alibi", 0.3, True)  # fmt: skip
    opcheck(torch.ops.rota.attention, (q, k, v, *rest))


@pytest.mark.parametrize("with_lse", [False, True])
def test_opcheck_backward(with_lse):
    q, k, v = (t.detach() for t in random_inputs(2, 33, 40, 4, 2, 16))
    o, lse = torch.ops.rota.attention(q, k, v, *PLAIN)
    d_lse = torch.randn_like(lse) if with_lse else None
    arguments = (torch.randn_like(o), d_lse, o, lse, q, k, v, *PLAIN)
    opcheck(torch.ops.rota.attention_backward, arguments)


def test_operator_and_direct_way_agree_bit_for_bit():
    q, k, v = random_inputs(2, 33, 40, 4, 2, 16)
    context = _call.Context(*PLAIN)
    direct, by_operator = _ops.attend(q, k, v, context), _ops.attention_op(q, k, v, *context)
    assert type(direct[0].grad_fn) is not type(by_operator[0].grad_fn)
    assert all(same_bits(a, b) for a, b in zip(direct, by_operator))
    d_o, d_lse = torch.randn_like(direct[0]), torch.randn_like(direct[1])
    for a, b in zip(
        torch.autograd.grad(direct, (q, k, v), (d_o, d_lse)),
        torch.autograd.grad(by_operator, (q, k, v), (d_o, d_lse)),
    ):
        assert same_bits(a, b)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_compile_fullgraph_without_recompiles_over_lengths(backend):
    def layer(q, k, v):
        return rota.attention(2 * q, k, v, mask="causal & window(8, 0)", score="softcap(20)")

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for length in (33, 40, 57, 64, 100):
        q, k, v = random_inputs(2, length, length, 4, 2, 16)
        found, wanted = compiled(q, k, v), layer(q, k, v)
        d_o = torch.randn_like(wanted)
        torch.testing.assert_close(found, wanted)
        for a, b in zip(
            torch.autograd.grad(found, (q, k, v), d_o), torch.autograd.grad(wanted, (q, k, v), d_o)
        ):
            torch.testing.assert_close(a, b)
    # One graph for the first length, one for all others.
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def autocast(q, k, v):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return rota.attention(q, k, v, "causal").float()


def turned(*tensors):
    return [t.transpose(1, 2) for t in tensors]


FORMS = {
    "autocast": (autocast, lambda n: ()),
    "document": (
        lambda q, k, v, ids: rota.attention(q, k, v, "causal & document", None, {"document": ids}),
        lambda n: (torch.arange(n, dtype=torch.int32).expand(2, n) // 9,),
    ),
    "sink": (
        lambda q, k, v, sink, slope: rota.attention(
            q, k, v, "causal", "alibi", {"slope": slope}, sink=sink
        ),
        lambda n: (torch.randn(4), torch.rand(4)),
    ),
    "used": (
        lambda q, k, v, used: rota.attention(q, k, v, "causal", seqused_k=used),
        lambda n: (torch.tensor([n, n - 3]),),
    ),
    "packed": (
        lambda q, k, v, ends: rota.attention(
            q[0], k[0], v[0], "causal", cu_seqlens_q=ends, cu_seqlens_k=ends
        ),
        lambda n: (torch.tensor([0, 10, n]),),
    ),
    "sdpa": (
        lambda q, k, v, mask: rota.scaled_dot_product_attention(
            *turned(q, k, v), mask, enable_gqa=True
        ),
        lambda n: (torch.rand(n, n) < 0.8,),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_compile_other_forms_without_recompiles_over_lengths(form):
    layer, others = FORMS[form]
    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for length in (33, 40, 57, 64):
        inputs = random_inputs(2, length, length, 4, 2, 16)
        more = others(length)
        found, wanted = compiled(*inputs, *more), layer(*inputs, *more)
        torch.testing.assert_close(found, wanted)
        for a, b in zip(
            torch.autograd.grad(found.sum(), inputs), torch.autograd.grad(wanted.sum(), inputs)
        ):
            torch.testing.assert_close(a, b)
    assert counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def test_compile_packed_with_tensors_and_drop_ins():
    offsets = torch.tensor([0, 10, 33], dtype=torch.int32)
    slope = torch.rand(4)

    def layer(q, k, v, offsets):
        o = rota.flash_attn_varlen_func(q, k, v, offsets, offsets, 23, 23, causal=True,
                                        window_size=(9, 0), alibi_slopes=slope)  # fmt: skip
        turned = (t[None].transpose(1, 2) for t in (o, k, v))
        return rota.scaled_dot_product_attention(*turned, is_causal=True, enable_gqa=True)

    torch._dynamo.reset()
    q, k, v = (t[0].detach() for t in random_inputs(1, 33, 33, 4, 2, 16))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert same_bits(compiled(q, k, v, offsets), layer(q, k, v, offsets))


def test_export():
    class Layer(torch.nn.Module):
        def forward(self, q, k, v):
            return rota.attention(q, k, v, mask="causal")

    q, k, v = (t.detach() for t in random_inputs(1, 33, 33, 2, 2, 16))
    length = torch.export.Dim("length", min=2)
    exported = torch.export.export(Layer(), (q, k, v), dynamic_shapes=[{1: length}] * 3)
    q, k, v = (t.detach() for t in random_inputs(1, 50, 50, 2, 2, 16))
    assert same_bits(exported.module()(q, k, v), Layer()(q, k, v))


def test_autocast():
    q, k, v = random_inputs(1, 20, 20, 2, 2, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = rota.attention(q, k.half(), v, mask="causal")
    assert o.dtype == torch.bfloat16
    wanted = rota.attention(q.bfloat16(), k.half().bfloat16(), v.bfloat16(), mask="causal")
    assert same_bits(o, wanted)
    o.sum().backward()
    assert q.grad.dtype == torch.float32 and q.grad.isfinite().all()


def test_double_backward_is_refused():
    q, k, v = random_inputs(1, 8, 8, 1, 1, 8)
    for attend in (rota.attention, lambda *qkv: torch.ops.rota.attention(*qkv, *PLAIN)[0]):
        (d_q,) = torch.autograd.grad(attend(q, k, v).sum(), q, create_graph=True)
        with pytest.raises(rota.Unsupported, match="second derivative"):
            d_q.sum().backward()


def test_meta_and_fake_tensors_give_shapes():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        q, k, v = (torch.empty(2, n, h, 64) for n, h in ((5, 4), (7, 2), (7, 2)))
        o, lse = rota.attention(q, k, v, mask="causal", return_lse=True)
        assert (o.shape, lse.shape) == ((2, 5, 4, 64), (2, 4, 5))
        with pytest.raises(rota.InvalidArgument):
            rota.attention(q, k[:, :3], v)


def test_checkpointing_recomputes_the_same_bits():
    from torch.utils.checkpoint import checkpoint

    q, k, v = random_inputs(1, 30, 30, 2, 2, 16)
    plain = torch.autograd.grad(rota.attention(q, k, v, mask="causal").square().sum(), (q, k, v))
    again = checkpoint(rota.attention, q, k, v, mask="causal", use_reentrant=False)
    for a, b in zip(plain, torch.autograd.grad(again.square().sum(), (q, k, v))):
        assert same_bits(a, b)


def test_gradient_of_only_some_inputs():
    q, k, v = random_inputs(1, 8, 8, 1, 1, 8)
    o = rota.attention(q.detach(), k, v.detach())
    (d_k,) = torch.autograd.grad(o.square().sum(), (k,))
    assert d_k.shape == k.shape
    with torch.no_grad():
        assert not rota.attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert same_bits(rota.attention(q, k, v), o)


def test_deterministic_check(monkeypatch):
    q, k, v = random_inputs(1, 40, 40, 2, 2, 16)
    runs = []
    run = _plans.Plan.run
    monkeypatch.setattr(_plans.Plan, "run", lambda *a: (runs.append(a[0]), run(*a))[1])
    rota.set_deterministic_check(True)
    try:
        rota.attention(q, k, v, mask="causal").sum().backward()
        assert len(runs) == 3  # forward once, backward twice

        noise = iter([0.0, 1e-7])
        backward = _call.backward_once

        def noisy(*arguments):
            results = backward(*arguments)
            results[0][1].view(-1)[3] += next(noise)
            return results

        monkeypatch.setattr(_call, "backward_once", noisy)
        with pytest.raises(rota.NondeterministicError, match="dk differs"):
            rota.attention(q, k, v, mask="causal").sum().backward()
    finally:
        rota.set_deterministic_check(False)


def test_digest():
    q, k, v = random_inputs(1, 40, 40, 2, 2, 16)
    causal = rota.digest(q, k, v, mask="causal")
    assert causal == rota.digest(q, k, v, "causal") and len(causal) == 32
    assert causal != rota.digest(q, k, v)
    assert causal != rota.digest(q.half(), k.half(), v.half(), mask="causal")
    before = rota.digest()
    rota.attention(q, k, v, mask="causal")
    assert rota.digest() == before
    rota.attention(q, k, v, mask="causal & window(3, 0)")
    assert rota.digest() != before


def test_threads_get_the_same_bits():
    """Whether they find what others have prepared, or prepare it at the same time."""
    for size in range(64, 74):
        q, k, v = random_inputs(2, size, size, 4, 4, 32)
        d_o = torch.randn_like(q)
        results = [None] * 8

        def work(i):
            o = rota.attention(q, k, v, mask="causal")
            results[i] = (o, *torch.autograd.grad(o, (q, k, v), d_o))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for found in results:
            assert all(same_bits(a, b) for a, b in zip(found, results[0]))


def test_many_lengths_stay_within_the_bound(monkeypatch):
    monkeypatch.setattr(_plans._plans, "bound", 8)
    for length in range(1, 40):
        q, k, v = (t.detach() for t in random_inputs(1, length, length, 1, 1, 8))
        rota.attention(q, k, v, mask="causal")
    assert len(_plans._plans.entries) <= 8


def test_host_copies_follow_changes(monkeypatch):
    """The cache that spares GPU tensors a second copy, tried on CPU tensors that claim to be."""

    class Pretender:
        is_cuda, _version = True, 0

        def is_inference(self):
            return False

    copies = []
    monkeypatch.setattr(_host, "HostCopy", lambda tensor: copies.append(tensor) or len(copies))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    tensor = Pretender()
    assert _host.host_copy(tensor, "x") == _host.host_copy(tensor, "x") == 1
    tensor._version = 1
    assert _host.host_copy(tensor, "x") == 2
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert _host.host_copy(tensor, "x") == 2
    with pytest.raises(rota.NotPrepared, match="captured"):
        _host.host_copy(Pretender(), "x")
    copies.clear()
    del tensor
    assert not _host._copies
