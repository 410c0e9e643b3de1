"""rota.attention against dense fp64 attention, on the CPU device."""

import pytest
import rota
import torch
from conftest import close, doubles, random_inputs, reference, same_bits

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def positions(n_q, n_k):
    return torch.arange(n_q)[:, None] + n_k - n_q, torch.arange(n_k)[None]


def check(q, k, v, allowed, **options):
    """Forward and backward against the reference; and a second time, bit for bit."""
    extra = {name: options.pop(name) for name in ("score_function",) if name in options}
    o, lse = rota.attention(q, k, v, return_lse=True, **options)
    wide = doubles(q, k, v)
    wanted, wanted_lse = reference(
        *wide, allowed, options.get("scale"), extra.get("score_function")
    )
    close(o, wanted)
    finite = wanted_lse > float("-inf")
    close(lse[finite], wanted_lse[finite], q.dtype)
    assert (lse[~finite] == float("-inf")).all()
    d_o = torch.randn_like(o)
    gradients = torch.autograd.grad(o, (q, k, v), d_o)
    for found, exact in zip(gradients, torch.autograd.grad(wanted, wide, d_o.double())):
        close(found, exact, factor=2)
    again = rota.attention(q, k, v, **options)
    assert same_bits(o, again)
    for first, second in zip(gradients, torch.autograd.grad(again, (q, k, v), d_o)):
        assert same_bits(first, second)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (4, 1)])
@pytest.mark.parametrize("lengths", [(70, 70), (33, 100), (1, 129)])
def test_causal(dtype, heads, lengths):
    q, k, v = random_inputs(2, *lengths, *heads, 32, dtype=dtype)
    i, j = positions(*lengths)
    check(q, k, v, j <= i, mask="causal")


@pytest.mark.parametrize("dims", [(64, 64), (48, 32), (8, 8), (46, 46), (33, 7), (160, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_head_dims(dims, dtype):
    check(*random_inputs(1, 40, 40, 2, 2, *dims, dtype=dtype), None)


@pytest.mark.parametrize(
    "mask, predicate",
    [
        (None, lambda i, j: torch.ones(i.shape[0], j.shape[1], dtype=torch.bool)),
        ("causal & window(20, 0)", lambda i, j: (j <= i) & (i - j <= 20)),
        ("causal & (window(16, 0) | sinks(4))", lambda i, j: (j <= i) & ((i - j <= 16) | (j < 4))),
        ("causal | prefix(30)", lambda i, j: (j <= i) | (j < 30)),
        ("causal & dilated(3)", lambda i, j: (j <= i) & ((i - j) % 3 == 0)),
        ('where("k % 2 == 1")', lambda i, j: (j % 2 == 1) & (i > -999)),
        ('where("k > q + 30")', lambda i, j: j > i + 30 - 11),
    ],
)
def test_masks(mask, predicate):
    q, k, v = random_inputs(1, 80, 91, 2, 1, 16)
    check(q, k, v, predicate(*positions(80, 91)), mask=mask)


def test_rows_without_keys_are_zero():
    q, k, v = random_inputs(1, 30, 30, 1, 1, 16)
    o, lse = rota.attention(q, k, v, mask='where("q > 9 and k <= q")', return_lse=True)
    assert (o[:, :10] == 0).all() and (lse[..., :10] == float("-inf")).all()
    d_q, _, _ = torch.autograd.grad(o.sum(), (q, k, v))
    assert (d_q[:, :10] == 0).all() and d_q.isfinite().all()


def test_score_with_cap_and_scale():
    q, k, v = random_inputs(1, 50, 50, 2, 2, 16)
    i, j = positions(50, 50)
    check(q, k, v, j <= i, mask="causal", score="softcap(3)", scale=0.7,
          score_function=lambda s: 3 * torch.tanh(s / 3))  # fmt: skip


def test_score_tensor():
    q, k, v = random_inputs(2, 50, 64, 4, 2, 16)
    slope = torch.rand(4)
    i, j = positions(50, 64)
    bias = -slope.double()[:, None, None] * (i - j).abs()
    check(q, k, v, j <= i, mask="causal", score="alibi", tensors={"slope": slope},
          score_function=lambda s: s + bias)  # fmt: skip
    # Another value at the same shape needs no other plan, and is used.
    from rota import _plans

    before = len(_plans._plans.entries)
    check(q, k, v, j <= i, mask="causal", score="alibi", tensors={"slope": 2 * slope},
          score_function=lambda s: s + 2 * bias)  # fmt: skip
    assert len(_plans._plans.entries) == before


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_mask_tensor_and_its_change(dtype):
    q, k, v = random_inputs(2, 60, 60, 2, 2, 16)
    ids = (torch.arange(60)[None] // torch.tensor([[13], [25]])).to(dtype)
    i, j = positions(60, 60)

    def allowed():
        return ((ids[:, :, None] == ids[:, None]) & (j <= i))[:, None]

    check(q, k, v, allowed(), mask="causal & document", tensors={"document": ids})
    ids[:, 30:] = 9
    check(q, k, v, allowed(), mask="causal & document", tensors={"document": ids})


def test_values_replace_parameters():
    q, k, v = random_inputs(1, 60, 60, 1, 1, 16)
    i, j = positions(60, 60)
    check(q, k, v, (j <= i) & (i - j <= 7), mask="causal & window(20, 0)",
          values={"window_left": 7})  # fmt: skip


def test_sink_and_its_gradient():
    q, k, v = random_inputs(2, 40, 40, 4, 2, 16)
    sink = torch.randn(4, 2, requires_grad=True)[:, 0]  # strided
    o, lse = rota.attention(q, k, v, mask="causal", sink=sink, return_lse=True)
    wide = doubles(q, k, v, sink)
    i, j = positions(40, 40)
    wanted, wanted_lse = reference(*wide[:3], j <= i, sink=wide[3])
    close(o, wanted)
    close(lse, wanted_lse)
    d_o = torch.randn_like(o)
    exact = torch.autograd.grad(wanted, wide, d_o.double())
    for found, right in zip(torch.autograd.grad(o, (q, k, v, sink), d_o), exact):
        close(found, right, factor=2)


def test_gradient_through_lse():
    q, k, v = random_inputs(1, 40, 40, 2, 2, 16)
    wide = doubles(q, k, v)
    i, j = positions(40, 40)
    for weight in (0.0, 1.0):  # with and without o
        o, lse = rota.attention(q, k, v, mask="causal", return_lse=True)
        wanted, wanted_lse = reference(*wide, j <= i)
        loss = lse.sin().sum() + (weight * o.cos().sum() if weight else 0)
        exact = wanted_lse.sin().sum() + weight * wanted.cos().sum()
        for found, right in zip(
            torch.autograd.grad(loss, (q, k, v)), torch.autograd.grad(exact, wide)
        ):
            close(found, right, factor=2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_any_strides_have_the_same_bits(dtype):
    q, k, v = random_inputs(2, 50, 60, 4, 2, 32, dtype=dtype)
    d_o = torch.randn(2, 50, 4, 32).to(dtype)
    o = rota.attention(q, k, v, mask="causal")
    wanted = torch.autograd.grad(o, (q, k, v), d_o)

    def odd(t, how):
        t = t.detach()
        if how == "heads first":
            t = t.transpose(1, 2).contiguous().transpose(1, 2)
        elif how == "dim strided":
            t = t.transpose(-1, -2).contiguous().transpose(-1, -2)
        elif how == "offset":
            t = torch.cat((t.new_zeros(1), t.flatten()))[1:].view(t.shape)
        elif how == "pitch":
            t = torch.nn.functional.pad(t, (0, 1))[..., :-1]
        elif how == "batch expanded":
            t = t[:1].expand(2, -1, -1, -1)
        return t.requires_grad_()

    for how in ("heads first", "dim strided", "offset", "pitch"):
        for which in ("q", "k", "v", "do", "qkvdo"):
            views = [odd(t, how if name in which else "") for name, t in zip("qkv", (q, k, v))]
            found = rota.attention(*views, mask="causal")
            assert same_bits(found, o), (how, which)
            d_view = odd(d_o, how if "do" in which else "").detach()
            gradients = torch.autograd.grad(found, views, d_view)
            assert all(same_bits(a, b) for a, b in zip(gradients, wanted)), (how, which)
    views = [odd(t, "batch expanded") for t in (q, k, v)]
    copies = [t.detach().clone() for t in views]
    assert same_bits(rota.attention(*views), rota.attention(*copies))
    # A sum's gradient has stride 0 everywhere.
    first = torch.autograd.grad(rota.attention(q, k, v).sum(), (q, k, v))
    ones = torch.ones_like(o)
    second = torch.autograd.grad(rota.attention(q, k, v), (q, k, v), ones)
    assert all(same_bits(a, b) for a, b in zip(first, second))


def test_layouts_agree():
    q, k, v = random_inputs(2, 30, 40, 4, 2, 16)
    o = rota.attention(q, k, v, mask="causal")
    turned = rota.attention(*(t.transpose(1, 2) for t in (q, k, v)), mask="causal", layout="bhsd")
    assert turned.shape == (2, 4, 30, 16) and same_bits(turned.transpose(1, 2), o)


@pytest.mark.parametrize("form", ["tensor", "list", "int64"])
def test_packed_equals_each_sequence_alone_bit_for_bit(form):
    cu_q, cu_k = [0, 20, 20, 63], [0, 31, 40, 90]
    q, k, v = (t[0].detach().requires_grad_() for t in random_inputs(1, 63, 90, 4, 2, 16))
    offsets = [cu_q, cu_k]
    if form != "list":
        dtype = torch.int64 if form == "int64" else torch.int32
        offsets = [torch.tensor(cu, dtype=dtype) for cu in offsets]
    o, lse = rota.attention(q, k, v, mask="causal", cu_seqlens_q=offsets[0],
                            cu_seqlens_k=offsets[1], return_lse=True)  # fmt: skip
    d_o = torch.randn_like(o)
    gradients = torch.autograd.grad(o, (q, k, v), d_o)
    assert o.shape == q.shape and lse.shape == (4, 63)
    for s in range(3):
        rows, keys = slice(cu_q[s], cu_q[s + 1]), slice(cu_k[s], cu_k[s + 1])
        alone = [
            t[r][None].detach().requires_grad_() for t, r in ((q, rows), (k, keys), (v, keys))
        ]
        single, single_lse = rota.attention(*alone, mask="causal", return_lse=True)
        assert same_bits(o[rows][None], single) and same_bits(lse[:, rows][None], single_lse)
        for packed, r, found in zip(
            gradients, (rows, keys, keys), torch.autograd.grad(single, alone, d_o[rows][None])
        ):
            assert same_bits(packed[r][None], found)


def test_rows_outside_the_offsets_are_zero():
    q, k, v = (t[0].detach().requires_grad_() for t in random_inputs(1, 50, 50, 2, 2, 16))
    o, lse = rota.attention(q, k, v, cu_seqlens_q=[5, 20, 40], cu_seqlens_k=[5, 20, 40],
                            return_lse=True)  # fmt: skip
    outside = torch.ones(50, dtype=torch.bool)
    outside[5:40] = False
    assert (o[outside] == 0).all() and (lse[:, outside] == float("-inf")).all()
    for gradient in torch.autograd.grad(o.sum(), (q, k, v)):
        assert (gradient[outside] == 0).all() and gradient.isfinite().all()


def test_used_lengths_hide_the_rest_of_a_cache():
    q, k, v = random_inputs(3, 4, 32, 2, 2, 16)
    used = [32, 10, 17]
    clean = [t.detach().clone() for t in (k, v)]
    dirty = [t.detach().clone() for t in (k, v)]
    for s, n in enumerate(used):
        for t in clean:
            t[s, n:] = 0
        for t in dirty:
            t[s, n:] = float("nan")
    a = rota.attention(q, *clean, mask="causal", seqused_k=used)
    b = rota.attention(q, *dirty, mask="causal", seqused_k=torch.tensor(used))
    assert a.isfinite().all() and same_bits(a, b)


@pytest.mark.parametrize("lengths", [(0, 5), (5, 0), (0, 0)])
def test_empty_lengths(lengths):
    q, k, v = random_inputs(2, *lengths, 2, 2, 16)
    for _ in range(3):
        o, lse = rota.attention(q, k, v, return_lse=True)
        assert lse.shape == (2, 2, lengths[0])
        assert (o == 0).all() and (lse == float("-inf")).all()
        assert all((g == 0).all() for g in torch.autograd.grad(o.sum(), (q, k, v)))


def test_empty_batch():
    q, k, v = random_inputs(0, 5, 5, 2, 2, 16)
    assert rota.attention(q, k, v).shape == (0, 5, 2, 16)


def test_finite_differences():
    q, k, v = random_inputs(1, 9, 11, 2, 1, 8)
    d_o = torch.randn(1, 9, 2, 8)

    def loss():
        return (rota.attention(q, k, v, mask="causal", score="softcap(2)") * d_o).sum()

    gradients = torch.autograd.grad(loss(), (q, k, v))
    for tensor, gradient in zip((q, k, v), gradients):
        direction = torch.randn_like(tensor)
        with torch.no_grad():
            tensor += 1e-2 * direction
            above = loss().double()
            tensor -= 2e-2 * direction
            below = loss().double()
            tensor += 1e-2 * direction
        assert abs((above - below) / 2e-2 - (gradient * direction).sum()) < 2e-3


def test_nondeterministic_is_allowed_and_right():
    q, k, v = random_inputs(1, 40, 40, 2, 2, 16)
    i, j = positions(40, 40)
    check(q, k, v, j <= i, mask="causal", deterministic=False)


# ---- What is refused ----


def refusals():
    q, k, v = random_inputs(1, 8, 8, 2, 2, 16)
    one = q[0]
    bias = torch.zeros(2, 20, requires_grad=True)
    return {
        "float64": (dict(q=q.double(), k=k.double(), v=v.double()), "float64"),
        "mixed dtypes": (dict(k=k.half()), "dtypes differ"),
        "rank": (dict(q=one), "batch, tokens, heads"),
        "heads": (dict(q=q[:, :, :1].expand(1, 8, 3, 16)), "multiple"),
        "k and v": (dict(v=v[:, :5]), "agree in all"),
        "head dims": (dict(q=q[..., :8]), "same head dim"),
        "batch": (dict(q=q.expand(2, -1, -1, -1)), "batch sizes"),
        "layout": (dict(layout="sbhd"), "bshd"),
        "one offset list": (dict(cu_seqlens_q=[0, 8]), "go together"),
        "offsets past the end": (
            dict(q=one, k=k[0], v=v[0], cu_seqlens_q=[0, 8], cu_seqlens_k=[0, 9]), "9"),
        "offsets descend": (
            dict(q=one, k=k[0], v=v[0], cu_seqlens_q=[0, 6, 4, 8], cu_seqlens_k=[0, 1, 2, 8]),
            "cu_seqlens"),
        "offset counts": (
            dict(q=one, k=k[0], v=v[0], cu_seqlens_q=[0, 8], cu_seqlens_k=[0, 4, 8]), "length"),
        "used lengths": (dict(seqused_k=[4, 4]), "seqused_k"),
        "used too many": (dict(seqused_k=[9]), "seqused_k"),
        "scale": (dict(scale=0.0), "scale 0"),
        "mask": (dict(mask="cauzal"), "cauzal"),
        "mask tensor": (dict(mask="document"), "document"),
        "short mask tensor": (
            dict(mask="document", tensors={"document": torch.zeros(1, 7, dtype=torch.int32)}),
            "document"),
        "unknown tensor": (dict(tensors={"x": torch.zeros(3)}), "x"),
        "learnable bias": (
            dict(score="relative_bias(7)", tensors={"bias": bias}), "gradient"),
        "sink": (dict(sink=torch.zeros(3)), "sink"),
        "bound of nothing": (dict(bound="spread"), "exact"),
        "spread on a CPU": (dict(backward="exact", bound="spread"), "not served"),
        "unknown algorithm": (dict(backward="exakt"), "exakt"),
        "unknown value": (dict(mask="causal", values={"window_left": 3}), "window_left"),
        "int64 overflow": (
            dict(mask="document", tensors={"document": torch.full((1, 8), 2**40)}), "int32"),
        "large head dim": (dict(q=torch.zeros(1, 4, 1, 2048), k=torch.zeros(1, 4, 1, 2048),
                                v=torch.zeros(1, 4, 1, 2048)), "2048"),
    }  # fmt: skip


@pytest.mark.parametrize("name", list(refusals()))
def test_refused_with_a_message(name):
    q, k, v = random_inputs(1, 8, 8, 2, 2, 16)
    change, message = refusals()[name]
    with pytest.raises(rota.Error, match=message):
        rota.attention(**{"q": q, "k": k, "v": v, **change})


def test_a_backward_pass_goes_by_the_mask_tensors_of_its_forward_pass():
    q, k, v = random_inputs(1, 8, 8, 1, 1, 16)
    for _ in range(3):
        ids = torch.zeros(1, 8, dtype=torch.int32)
        before = rota.attention(q, k, v, mask="document", tensors={"document": ids})
        wanted = torch.autograd.grad(before.square().sum(), (q, k, v), retain_graph=True)
        ids[:, 4:] = 1
        after = rota.attention(q, k, v, mask="document", tensors={"document": ids})
        assert not same_bits(before, after)
        for a, b in zip(torch.autograd.grad(before.square().sum(), (q, k, v)), wanted):
            assert same_bits(a, b)


def test_a_change_of_a_score_tensor_before_the_backward_pass_is_refused():
    q, k, v = random_inputs(1, 8, 8, 1, 1, 16)
    slope = torch.ones(1)
    o = rota.attention(q, k, v, score="alibi", tensors={"slope": slope})
    slope += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize("cover", [True, False])
def test_packed_calls_repeat(cover):
    q, k, v = (t[0].detach().requires_grad_() for t in random_inputs(1, 60, 60, 4, 2, 16))
    ends = [0, 20, 60] if cover else [5, 20, 50]
    offsets = torch.tensor(ends, dtype=torch.int32)
    d_o = torch.randn(60, 4, 16)
    runs = []
    for given in (ends, offsets, offsets, offsets.clone(), offsets.long()):
        o, lse = rota.attention(q, k, v, "causal", return_lse=True,
                                cu_seqlens_q=given, cu_seqlens_k=given)  # fmt: skip
        runs.append((o, lse, *torch.autograd.grad(o, (q, k, v), d_o)))
    for run in runs[1:]:
        assert all(same_bits(a, b) for a, b in zip(runs[0], run))
    outside = [row for row in range(60) if row < ends[0] or row >= ends[-1]]
    assert all(not t[outside].any() for t in (runs[-1][0], *runs[-1][2:]))
    other = rota.attention(q, k, v, "causal", cu_seqlens_q=[0, 30, 60], cu_seqlens_k=[0, 30, 60])
    assert not same_bits(other, runs[0][0])
