"""The same on a GPU: against the fp32 CPU device and against PyTorch's own kernels; streams, CUDA
graphs, devices, allocations. Skipped, loudly, without one."""

import threading

import pytest
import rota
import torch
import torch.nn.functional as F
from conftest import close, doubles, random_inputs, reference, same_bits
from rota import _plain, _plans

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

HALF = [torch.bfloat16, torch.float16]


def on_gpu(*shape, dtype=torch.bfloat16, **options):
    tensors = random_inputs(*shape, dtype=dtype, **options)
    return [t.detach().cuda().requires_grad_() for t in tensors]


def gradients(o, inputs, d_o):
    return torch.autograd.grad(o, inputs, d_o, retain_graph=True)


MIXED = "causal & (window(100, 0) | sinks(4))"


@pytest.mark.parametrize("dim", [64, 128, 80, 33, 256])
@pytest.mark.parametrize(
    ("dtype", "mask"),
    [*((torch.bfloat16, m) for m in ("causal", MIXED, None)),
     (torch.float16, MIXED), (torch.float32, MIXED)],
)  # fmt: skip
def test_against_the_cpu_device(dtype, dim, mask):
    q, k, v = on_gpu(2, 300, 333, 4, 2, dim, dtype=dtype)
    o, lse = rota.attention(q, k, v, mask=mask, return_lse=True)
    host = [t.detach().float().cpu().requires_grad_() for t in (q, k, v)]
    wanted, wanted_lse = rota.attention(*host, mask=mask, return_lse=True)
    close(o.cpu(), wanted)
    close(lse.cpu(), wanted_lse, dtype)
    d_o = torch.randn_like(o)
    exact = torch.autograd.grad(wanted, host, d_o.float().cpu())
    first = gradients(o, (q, k, v), d_o)
    for found, right in zip(first, exact):
        close(found.cpu(), right, factor=2)
    for _ in range(5):
        again = gradients(o, (q, k, v), d_o)
        assert all(same_bits(a, b) for a, b in zip(first, again))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sink", [False, True])
@pytest.mark.parametrize("bound", ["norm", "spread"])
def test_exact(bound, sink, packed):
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("`exact` is served on sm_90")
    q, k, v = on_gpu(1 if packed else 2, 700, 700, 4, 2, 64)
    with torch.no_grad():
        v[:, 77] *= 100
    logits = torch.randn(4, device="cuda", requires_grad=True) if sink else None
    inputs = [q, k, v] + ([logits] if sink else [])
    options = {"mask": MIXED, "sink": logits}
    if packed:
        q, k, v = (t[0] for t in (q, k, v))
        options["cu_seqlens_q"] = options["cu_seqlens_k"] = [0, 300, 431, 700]
    o, lse = rota.attention(q, k, v, return_lse=True, **options)
    d_o, d_lse = torch.randn_like(o), torch.randn_like(lse)
    wanted = torch.autograd.grad((o, lse), inputs, (d_o, d_lse))
    o, lse = rota.attention(q, k, v, return_lse=True, backward="exact", bound=bound, **options)
    first = torch.autograd.grad((o, lse), inputs, (d_o, d_lse), retain_graph=True)
    for found, right in zip(first, wanted):
        close(found, right, factor=2)
    for _ in range(5):
        again = torch.autograd.grad((o, lse), inputs, (d_o, d_lse), retain_graph=True)
        assert all(same_bits(a, b) for a, b in zip(first, again))


@pytest.mark.parametrize("dim", [320, 512])
@pytest.mark.parametrize("mask", ["causal", "window(100, 50)"])
def test_large_head_dims(dim, mask):
    q, k, v = on_gpu(2, 200, 233, 4, 2, dim)
    host = [t.detach().float().cpu().requires_grad_() for t in (q, k, v)]
    wanted = rota.attention(*host, mask=mask)
    d_o = torch.randn_like(q)
    exact = torch.autograd.grad(wanted, host, d_o.float().cpu())
    first = None
    for _ in range(4):
        o = rota.attention(q, k, v, mask=mask)
        found = gradients(o, (q, k, v), d_o)
        close(o.cpu(), wanted)
        for a, b in zip(found, exact):
            close(a.cpu(), b, factor=2)
        assert all(same_bits(a, b) for a, b in zip(found, first or found))
        first = found


@pytest.mark.parametrize(
    ("dtype", "mask", "score"),
    [(torch.bfloat16, "causal", None), (torch.float16, MIXED, None),
     (torch.float32, MIXED, "softcap(5)")],
)  # fmt: skip
def test_finite_differences_of_the_fp32_cpu_device(dtype, mask, score):
    """Slopes of a loss that the CPU computes, along random directions, against the gradients."""
    inputs = on_gpu(2, 90, 110, 4, 2, 64, dtype=dtype)
    d_o = torch.randn(2, 90, 4, 64).to(dtype)
    o = rota.attention(*inputs, mask=mask, score=score)
    found = gradients(o, inputs, d_o.cuda())
    host = [t.detach().float().cpu() for t in inputs]

    def loss(moved):
        return (rota.attention(*moved, mask=mask, score=score).double() * d_o.double()).sum()

    step = 1e-2
    for i, gradient in enumerate(found):
        direction = torch.randn_like(host[i])
        ends = [[*host[:i], host[i] + sign * step * direction, *host[i + 1 :]] for sign in (1, -1)]
        slope = (loss(ends[0]) - loss(ends[1])).item() / (2 * step)
        exact = (gradient.double().cpu() * direction).sum().item()
        size = gradient.double().norm().item() * direction.numel() ** 0.5 / gradient.numel() ** 0.5
        assert abs(slope - exact) < (0.02 if dtype == torch.float32 else 0.05) * size


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("lengths", [(1024, 1024), (129, 700), (700, 129), (1, 333)])
@pytest.mark.parametrize("heads", [(8, 8), (8, 2), (4, 1)])
@pytest.mark.parametrize("is_causal", [True, False])
def test_against_sdpa(dtype, lengths, heads, is_causal):
    q, k, v = on_gpu(2, *lengths, *heads, 128, dtype=dtype)
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    options = dict(is_causal=is_causal, enable_gqa=heads[0] != heads[1])
    found = rota.scaled_dot_product_attention(*turned, **options)
    wanted = F.scaled_dot_product_attention(*turned, **options)
    close(found, wanted)
    d_o = torch.randn_like(found)
    for a, b in zip(gradients(found, (q, k, v), d_o), gradients(wanted, (q, k, v), d_o)):
        close(a, b, factor=2)


@pytest.mark.parametrize("kind", ["bool", "float"])
def test_against_sdpa_with_a_mask(kind):
    q, k, v = on_gpu(2, 200, 300, 4, 4, 64)
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    mask = torch.randn(2, 1, 200, 300, device="cuda")
    mask = mask > -0.5 if kind == "bool" else mask.to(q.dtype)
    found = rota.scaled_dot_product_attention(*turned, mask)
    wanted = F.scaled_dot_product_attention(*turned, mask)
    close(found, wanted)
    d_o = torch.randn_like(found)
    for a, b in zip(gradients(found, (q, k, v), d_o), gradients(wanted, (q, k, v), d_o)):
        close(a, b, factor=2)


def test_against_flash_attn():
    flash = pytest.importorskip("flash_attn")
    q, k, v = on_gpu(2, 500, 600, 8, 2, 64)
    for options in (dict(causal=True), dict(window_size=(100, 20)), dict(softcap=20.0),
                    dict(causal=True, alibi_slopes=torch.rand(8, device="cuda"))):  # fmt: skip
        found = rota.flash_attn_func(q, k, v, **options)
        wanted = flash.flash_attn_func(q, k, v, **options)
        close(found, wanted)
        d_o = torch.randn_like(found)
        for a, b in zip(gradients(found, (q, k, v), d_o), gradients(wanted, (q, k, v), d_o)):
            close(a, b, factor=2)


def flash_attention_of_torch(q, k, v, cu=(None, None), longest=None, causal=False,
                             window_size=(-1, -1)):  # fmt: skip
    """The FlashAttention-2 kernels that torch carries, given what flash-attn gives them."""
    longest = longest or (q.shape[1], k.shape[1])
    left, right = window_size
    return torch.ops.aten._flash_attention_forward(
        q, k, v, *cu, *longest, 0.0, causal, False,
        window_size_left=left, window_size_right=right,
    )[:2]  # fmt: skip


@pytest.mark.parametrize("heads", [(8, 8), (8, 2)])
@pytest.mark.parametrize("lengths", [(300, 300), (200, 333)])
@pytest.mark.parametrize(
    "options",
    [dict(causal=True), dict(window_size=(50, 20)), dict(causal=True, window_size=(70, -1))],
    ids=["causal", "window", "left"],
)
def test_against_the_flash_attention_of_torch(heads, lengths, options):
    q, k, v = on_gpu(2, *lengths, *heads, 64)
    found, lse, _ = rota.flash_attn_func(q, k, v, return_attn_probs=True, **options)
    wanted, wanted_lse = flash_attention_of_torch(q, k, v, **options)
    close(found, wanted)
    close(lse, wanted_lse, q.dtype)
    d_o = torch.randn_like(found)
    for a, b in zip(gradients(found, (q, k, v), d_o), gradients(wanted, (q, k, v), d_o)):
        close(a, b, factor=2)


def test_packed_against_the_flash_attention_of_torch():
    q, k, v = (t[0].detach().requires_grad_() for t in on_gpu(1, 700, 800, 8, 2, 64))
    cu_q, cu_k = (
        torch.tensor(ends, dtype=torch.int32, device="cuda")
        for ends in ([0, 100, 420, 700], [0, 150, 500, 800])
    )
    for options in (dict(causal=True), dict(causal=True, window_size=(60, 0))):
        found = rota.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 320, 350, **options)
        wanted, _ = flash_attention_of_torch(q, k, v, (cu_q, cu_k), (320, 350), **options)
        close(found, wanted)
        d_o = torch.randn_like(found)
        for a, b in zip(gradients(found, (q, k, v), d_o), gradients(wanted, (q, k, v), d_o)):
            close(a, b, factor=2)


def documents(b, h, q, k):
    return (q // 300 == k // 300) & (q >= k)


def banded(b, h, q, k):
    return (q - k >= 0) & ((q - k <= 200) | (k < 4))


DOCUMENTS = 'causal & where("q // 300 == k // 300")'
BANDED = "causal & (window(200, 0) | sinks(4))"


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("dim", [64, 128])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize(
    ("mask_mod", "partial"), [(documents, DOCUMENTS), (banded, BANDED)], ids=["documents", "band"]
)
def test_against_flex_attention(dtype, dim, kv_heads, mask_mod, partial):
    """FlexAttention as it is without torch.compile: the whole matrix of scores."""
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    torch._dynamo.reset()
    block_mask = flex.create_block_mask(mask_mod, None, None, 1024, 1024)
    q, k, v = on_gpu(1, 1024, 1024, 4, kv_heads, dim, dtype=dtype)
    found = rota.attention(q, k, v, mask=rota.from_block_mask(block_mask, partial=partial))
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    wanted = flex.flex_attention(*turned, block_mask=block_mask, enable_gqa=kv_heads != 4)
    wanted = wanted.transpose(1, 2)
    close(found, wanted)
    d_o = torch.randn_like(found)
    for a, b in zip(gradients(found, (q, k, v), d_o), gradients(wanted, (q, k, v), d_o)):
        close(a, b, factor=2)


def test_against_compiled_flex_attention():
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    block_mask = flex.create_block_mask(documents, None, None, 1024, 1024)
    q, k, v = on_gpu(1, 1024, 1024, 4, 4, 64)
    found = rota.attention(q, k, v, mask=rota.from_block_mask(block_mask, partial=DOCUMENTS))
    turned = [t.transpose(1, 2) for t in (q, k, v)]
    wanted = torch.compile(flex.flex_attention)(*turned, block_mask=block_mask)
    close(found, wanted.transpose(1, 2))


def test_packed_score_tensor_sink_and_gpu_offsets():
    q, k, v = (t[0].detach().requires_grad_() for t in on_gpu(1, 700, 700, 4, 2, 64))
    offsets = torch.tensor([0, 100, 420, 700], dtype=torch.int32, device="cuda")
    slope = torch.rand(4, device="cuda")
    sink = torch.randn(4, device="cuda", requires_grad=True)
    o = rota.attention(q, k, v, "causal", "alibi", {"slope": slope}, sink=sink,
                       cu_seqlens_q=offsets, cu_seqlens_k=offsets)  # fmt: skip
    d_o = torch.randn_like(o)
    found = gradients(o, (q, k, v, sink), d_o)
    for begin, end in ((0, 100), (100, 420), (420, 700)):
        wide = doubles(*(t[None, begin:end] for t in (q, k, v)))
        i = torch.arange(end - begin, device="cuda")
        steep = slope.double()[:, None, None] * (i[:, None] - i).abs()
        wanted, _ = reference(
            *wide, i <= i[:, None], score=lambda s: s - steep, sink=sink.double()
        )
        close(o[begin:end], wanted[0])
        exact = torch.autograd.grad(wanted, wide, d_o[None, begin:end].double())
        for a, b in zip(found, exact):
            close(a[begin:end], b[0], factor=2)
    assert all(same_bits(a, b) for a, b in zip(found, gradients(o, (q, k, v, sink), d_o)))


def test_any_strides_and_alignments():
    q, k, v = on_gpu(2, 200, 200, 4, 4, 64)
    o = rota.attention(q, k, v, mask="causal")
    odd = [torch.cat((t.new_zeros(1), t.detach().flatten()))[1:].view(t.shape) for t in (q, k, v)]
    close(rota.attention(*odd, mask="causal"), o)
    fused = torch.stack((q, k, v), 2).detach().requires_grad_()
    assert same_bits(rota.flash_attn_qkvpacked_func(fused, causal=True), o)
    # The same call again, aligned and not, by recipe.
    assert same_bits(rota.attention(q, k, v, mask="causal"), o)
    close(rota.attention(*odd, mask="causal"), o)


def test_current_stream_is_used():
    q, k, v = on_gpu(1, 512, 512, 4, 4, 64)
    wanted = rota.attention(q, k, v, mask="causal")
    stream = torch.cuda.Stream()
    late = torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream), torch.no_grad():
        torch.cuda._sleep(200_000_000)  # about 0.1 s: whoever does not wait reads zeros
        late.copy_(q)
        found = rota.attention(late, k, v, mask="causal")
        total = found.clone()
    stream.synchronize()
    assert same_bits(total, wanted)


def test_calls_neither_synchronise_nor_copy():
    q, k, v = on_gpu(1, 512, 512, 4, 4, 64)
    ids = torch.zeros(1, 512, dtype=torch.int32, device="cuda")
    d_o = torch.randn_like(q)

    def step():
        o = rota.attention(q, k, v, mask="causal & document", tensors={"document": ids})
        torch.autograd.grad(o, (q, k, v), d_o)

    step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_change_of_a_gpu_mask_tensor_is_seen():
    q, k, v = on_gpu(1, 256, 256, 2, 2, 64)
    ids = torch.zeros(1, 256, dtype=torch.int32, device="cuda")
    before = rota.attention(q, k, v, mask="document", tensors={"document": ids})
    ids[:, 100:] = 1
    after = rota.attention(q, k, v, mask="document", tensors={"document": ids})
    assert not same_bits(before, after)
    assert same_bits(
        after, rota.attention(q, k, v, mask="document", tensors={"document": ids.cpu()})
    )


def test_graph_capture_after_a_warm_up():
    q, k, v = on_gpu(1, 384, 384, 4, 4, 64)
    d_o = torch.randn_like(q)

    def step():
        o = rota.attention(q, k, v, mask="causal")
        return (o, *torch.autograd.grad(o, (q, k, v), d_o))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    plans = [plan for plan in _plans._plans.entries.values() if plan.pinned]
    assert len(plans) >= 2
    for seed in range(20):
        with torch.no_grad():
            q.copy_(torch.randn(q.shape, generator=torch.Generator().manual_seed(seed)))
        graph.replay()
        assert all(same_bits(a, b) for a, b in zip(results, step()))


def test_first_call_inside_a_capture_is_refused_and_the_capture_survives():
    q, k, v = (t.detach() for t in on_gpu(1, 77, 91, 2, 2, 64))
    graph, x = torch.cuda.CUDAGraph(), torch.zeros(4, device="cuda")
    with torch.cuda.graph(graph):
        with pytest.raises(rota.NotPrepared, match="captur"):
            rota.attention(q, k, v, mask="causal & window(33, 0)")
        x += 1
    graph.replay()
    torch.cuda.synchronize()
    assert x.tolist() == [1.0] * 4


def test_evicted_plans_wait_for_their_launches(monkeypatch):
    monkeypatch.setattr(_plans._plans, "bound", 4)
    inputs = [[t.detach() for t in on_gpu(1, n, n, 4, 4, 64)] for n in range(100, 140)]
    wanted = [rota.attention(*qkv, mask="causal").clone() for qkv in inputs]
    torch.cuda._sleep(100_000_000)
    found = [rota.attention(*qkv, mask="causal") for qkv in inputs]
    assert all(same_bits(a, b) for a, b in zip(found, wanted))


def test_evicted_plans_wait_for_streams_that_the_caller_made(monkeypatch):
    """Two kinds of streams: torch's own live for ever, others get an event per launch."""
    monkeypatch.setattr(_plans._plans, "bound", 2)
    own = torch.cuda.Stream()
    foreign = torch.cuda.ExternalStream(own.cuda_stream)
    inputs = [[t.detach() for t in on_gpu(1, n, n, 4, 4, 64)] for n in range(200, 212)]
    wanted = [rota.attention(*qkv, mask="causal").clone() for qkv in inputs]
    torch.cuda.synchronize()
    with torch.cuda.stream(foreign):
        for _ in range(2):
            torch.cuda._sleep(50_000_000)
            found = [rota.attention(*qkv, mask="causal") for qkv in inputs]
    plan = next(reversed(_plans._plans.entries.values()))
    assert plan.events and own.cuda_stream not in plan.streams
    torch.cuda.synchronize()
    assert all(same_bits(a, b) for a, b in zip(found, wanted))


@pytest.mark.parametrize("layout", ["bshd", "bhsd"])
def test_repeated_calls_go_the_short_way_and_agree(layout):
    q, k, v = on_gpu(2, 130, 150, 4, 2, 64)
    if layout == "bhsd":
        q, k, v = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v))
    runs = []
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(4):
                o = rota.attention(q, k, v, mask="causal", layout=layout)
                d_o = o.detach().clone()
                runs.append((o, *torch.autograd.grad(o, (q, k, v), d_o)))
        stream.synchronize()
    for run in runs[1:]:
        assert all(same_bits(a, b) and a.stride() == b.stride() for a, b in zip(runs[0], run))


def test_threads_on_one_stream_share_no_workspace():
    inputs = [on_gpu(1, 300, 300, 4, 4, 64, seed=seed) for seed in range(4)]
    d_o = torch.randn_like(inputs[0][0])
    wanted = [gradients(rota.attention(*qkv, mask="causal"), qkv, d_o) for qkv in inputs]
    results = [[] for _ in inputs]

    def work(i):
        with torch.autograd.set_multithreading_enabled(False):  # backward in this thread
            for _ in range(20):
                o = rota.attention(*inputs[i], mask="causal")
                results[i].append(gradients(o, inputs[i], d_o))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for found, right in zip(results, wanted):
        assert len(found) == 20
        assert all(same_bits(a, b) for run in found for a, b in zip(run, right))


def test_workspaces_are_kept_for_streams_of_torch_alone():
    """Another's address may come to name a new stream while the old one still runs."""
    own = torch.cuda.Stream()
    foreign = torch.cuda.ExternalStream(own.cuda_stream)
    qkv = on_gpu(1, 301, 303, 4, 4, 64)
    d_o = torch.randn_like(qkv[0])
    wanted = gradients(rota.attention(*qkv, mask="causal"), qkv, d_o)
    _plain._spaces.clear()
    for stream, kept in ((foreign, False), (own, True)):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                found = gradients(rota.attention(*qkv, mask="causal"), qkv, d_o)
        stream.synchronize()
        assert all(same_bits(a, b) for a, b in zip(found, wanted))
        assert ((own.device_index, own.cuda_stream) in _plain._spaces) == kept


def test_activation_checkpointing():
    from torch.utils.checkpoint import checkpoint

    q, k, v = on_gpu(2, 130, 130, 4, 4, 64)

    def layer(q, k, v):
        return rota.attention(2 * q, k, v, mask="causal").square()

    wanted = torch.autograd.grad(layer(q, k, v).sum(), (q, k, v))
    for _ in range(3):
        o = checkpoint(layer, q, k, v, use_reentrant=False)
        found = torch.autograd.grad(o.sum(), (q, k, v))
        assert all(same_bits(a, b) for a, b in zip(found, wanted))


def test_compile_without_recompiles_over_lengths():
    def layer(q, k, v):
        return rota.attention(2 * q, k, v, mask="causal").square()

    torch._dynamo.reset()
    counters = torch._dynamo.utils.counters
    counters.clear()
    compiled = torch.compile(layer, fullgraph=True)
    for length in (100, 200, 300, 77):
        q, k, v = on_gpu(1, length, length, 2, 2, 64)
        o = compiled(q, k, v)
        close(o, layer(q, k, v))
        assert all(g.isfinite().all() for g in torch.autograd.grad(o.sum(), (q, k, v)))
    assert counters["stats"]["unique_graphs"] <= 2 and not counters["graph_break"]


def test_compile_that_captures_graphs():
    """torch.compile's own CUDA graphs: it runs a few times before it captures, which prepares."""

    def layer(q, k, v):
        return rota.attention(2 * q, k, v, mask="causal").square()

    torch._dynamo.reset()
    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    for seed in range(6):
        torch.compiler.cudagraph_mark_step_begin()
        q, k, v = on_gpu(1, 256, 256, 4, 4, 64, seed=seed)
        o = compiled(q, k, v)
        found = [g.clone() for g in torch.autograd.grad(o.sum(), (q, k, v))]
        exact = torch.autograd.grad(layer(q, k, v).sum(), (q, k, v))
        for a, b in zip(found, exact):
            close(a, b)


def test_opcheck():
    q, k, v = on_gpu(2, 33, 40, 4, 2, 64)
    plain = (*(None,) * 5, [], "", "", "causal", "", 0.0, True)
    results = torch.library.opcheck(torch.ops.rota.attention, (q, k, v, *plain))
    assert set(results.values()) == {"SUCCESS"}, results


def test_autocast():
    q, k, v = on_gpu(1, 100, 100, 4, 4, 64, dtype=torch.float32)
    for _ in range(2):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            o = rota.attention(q, k, v, mask="causal")
        assert o.dtype == torch.bfloat16
        assert same_bits(o, rota.attention(*(t.bfloat16() for t in (q, k, v)), mask="causal"))
        for gradient in torch.autograd.grad(o.sum(), (q, k, v)):
            assert gradient.dtype == torch.float32 and gradient.isfinite().all()


def test_double_backward_is_refused():
    q, k, v = on_gpu(1, 64, 64, 4, 4, 64)
    o = rota.attention(q, k, v, mask="causal")
    (d_q,) = torch.autograd.grad(o.sum(), q, create_graph=True)
    with pytest.raises(rota.Unsupported, match="second derivative"):
        d_q.sum().backward()


def test_deterministic_check_and_digest():
    q, k, v = on_gpu(1, 500, 500, 4, 4, 64)
    before = rota.digest(q, k, v, mask="causal")
    rota.set_deterministic_check(True)
    try:
        for _ in range(3):
            rota.attention(q, k, v, mask="causal").square().sum().backward()
    finally:
        rota.set_deterministic_check(False)
    assert rota.digest(q, k, v, mask="causal") == before != rota.digest(q, k, v)


@pytest.mark.parametrize("multithreading", [True, False])
def test_backward_in_torchs_thread_and_in_the_callers(multithreading):
    q, k, v = on_gpu(2, 200, 200, 4, 4, 64)
    d_o = torch.randn_like(q)
    wanted = gradients(rota.attention(q, k, v, mask="causal"), (q, k, v), d_o)
    with torch.autograd.set_multithreading_enabled(multithreading):
        for _ in range(3):
            found = gradients(rota.attention(q, k, v, mask="causal"), (q, k, v), d_o)
            assert all(same_bits(a, b) for a, b in zip(found, wanted))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_tensors_of_another_device_than_the_current():
    q, k, v = on_gpu(1, 200, 200, 2, 2, 64)
    d_o = torch.randn_like(q)
    wanted = rota.attention(q, k, v, mask="causal")
    exact = gradients(wanted, (q, k, v), d_o)
    moved = [t.detach().to("cuda:1").requires_grad_() for t in (q, k, v)]
    for current in (0, 0, 1, 1, 0):
        with torch.cuda.device(current):
            found = rota.attention(*moved, mask="causal")
            results = (found, *gradients(found, moved, d_o.to("cuda:1")))
            assert torch.cuda.current_device() == current
        for a, b in zip(results, (wanted, *exact)):
            assert a.device.index == 1 and same_bits(a.cpu(), b.cpu())
    with pytest.raises(rota.InvalidArgument, match="devices differ"):
        rota.attention(moved[0], k, v)
