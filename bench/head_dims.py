"""Head dims beyond 128, forward and backward, beside cuDNN where that serves them; a line of CSV as
soon as it is known.

    python3 -u bench/head_dims.py [--dims 192,192/128,256,512] [--seqlens 4096,16384]
        [--masks causal,full] [--passes forward,backward] [--scores none,softcap,alibi,bias]
        [--output FILE.csv]

bf16, 16,384 tokens (at least one sequence), 2048 // head_dim heads, or 16 where the head dim does
not divide 2048; `192/128`: of Q and K, of V. Medians of CUDA-event times of whole passes, the
libraries taking turns in one process; a causal mask counts half. cuDNN's backward pass is not
deterministic. `difference`: of the results from cuDNN's, relative; exit status 1 if one is beyond
what rounding explains. Two minutes for everything on an H200. `--scores`: kernels with those score
functions, which cuDNN does not serve, instead, taking turns.
"""

import argparse
import sys

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import librota
from backward import TOLERANCE, difference, measure
from report import csv_lines

TOKENS, HIDDEN = 16384, 2048
FIELDS = "pass,head_dim,length,mask,library,tflops,milliseconds,difference"
# Name -> text of the score, and its tensors by heads and length.
SCORES = {
    "none": ("", lambda heads, length: {}),
    "softcap": ("softcap(50)", lambda heads, length: {}),
    "alibi": ("alibi", lambda heads, length: {"slope": uniform(heads) * 0.1}),
    "bias": (
        "relative_bias({})",
        lambda heads, length: {"bias": torch.randn(heads, 2 * length, device="cuda")},
    ),
}


def heads_of(dim):
    return HIDDEN // dim if HIDDEN % dim == 0 else 16


def uniform(count):
    return torch.rand(count, device="cuda")


def rota_calls(tensors, causal, library, score="none"):
    q, k, v, d_o = tensors
    mask = "causal" if causal else "full"
    text, score_tensors = SCORES[score]
    score_field = f", score = {text.format(k.shape[1] - 1)}" if text else ""
    model = librota.Model(
        f"return rota.attention{{head_dim = {q.shape[3]}, head_dim_v = {v.shape[3]}, "
        f"heads = {q.shape[2]}, mask = {mask}{score_field}}}",
        library=library,
    )
    call = model.attention(q, k, v, tensors=score_tensors(q.shape[2], k.shape[1]))
    call.forward()
    return {"forward": lambda: [call.forward()], "backward": lambda: call.backward(d_o)}


def cudnn_calls(tensors, causal):
    """{} where it does not serve the head dims."""
    inputs = [x.transpose(1, 2).detach().requires_grad_() for x in tensors[:3]]
    gradient = tensors[3].transpose(1, 2)

    def attend():
        with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
            return scaled_dot_product_attention(*inputs, is_causal=causal)

    def forward():
        with torch.no_grad():
            return [attend().transpose(1, 2)]

    try:
        out = attend()
        torch.autograd.grad(out, inputs, gradient, retain_graph=True)
    except RuntimeError:
        return {}

    def backward():
        found = torch.autograd.grad(out, inputs, gradient, retain_graph=True)
        return [g.transpose(1, 2) for g in found]

    return {"forward": forward, "backward": backward}


def bench_shape(options, dims, length, mask, write):
    """Writes a line for each pass and library; how many results are wrong."""
    dim, dim_v = dims
    batch, heads, causal = max(1, TOKENS // length), heads_of(dim), mask == "causal"
    shapes = [(batch, length, heads, x) for x in (dim, dim, dim_v, dim_v)]
    tensors = [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in shapes]
    if options.scores:
        libraries = {
            "Rota" if score == "none" else f"Rota {score}": rota_calls(
                tensors, causal, options.library, score
            )
            for score in options.scores.split(",")
        }
    else:
        libraries = {"Rota": rota_calls(tensors, causal, options.library)}
        if max(dims) <= 256:
            libraries["cuDNN"] = cudnn_calls(tensors, causal)
    wrong = 0
    for which in options.passes.split(","):
        calls = {name: passes[which] for name, passes in libraries.items() if passes}
        errors = {name: "" for name in calls}
        if "cuDNN" in calls:
            ours, theirs = calls["Rota"](), calls["cuDNN"]()
            error = max(map(difference, ours, theirs))
            errors["Rota"] = f"{error:.1e}"
            wrong += not error < TOLERANCE
            del ours, theirs
        products = 2 * (dim + dim_v) if which == "forward" else 2 * (3 * dim + 2 * dim_v)
        flops = products * batch * heads * length**2 * (0.5 if causal else 1)
        text = str(dim) if dim == dim_v else f"{dim}/{dim_v}"
        for name, milliseconds in measure(calls).items():
            write(
                f"{which},{text},{length},{mask},{name},{flops / milliseconds / 1e9:.1f},"
                f"{milliseconds:.3f},{errors[name]}"
            )
    return wrong


def dims_of(text):
    pairs = [[int(x) for x in dims.split("/")] for dims in text.split(",")]
    return [(pair[0], pair[-1]) for pair in pairs]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", type=dims_of, default=dims_of("192,192/128,256,512"))
    parser.add_argument("--seqlens", default="4096,16384")
    parser.add_argument("--masks", default="causal,full")
    parser.add_argument("--passes", default="forward,backward")
    parser.add_argument("--scores", default="")
    parser.add_argument("--library", default=None)
    parser.add_argument("--output", default="bench/results/large_head_dims.csv")
    options = parser.parse_args()
    torch.manual_seed(0)
    wrong = 0
    about = f"bf16, {TOKENS} tokens; whole passes; Rota deterministic, cuDNN's backward pass not"
    with csv_lines(options.output, about) as write:
        write(FIELDS)
        for dims in options.dims:
            for length in map(int, options.seqlens.split(",")):
                for mask in options.masks.split(","):
                    wrong += bench_shape(options, dims, length, mask, write)
                    torch.cuda.empty_cache()
    print(f"{wrong} wrong" if wrong else "all right")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
