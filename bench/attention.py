"""Times Rota beside what PyTorch has: cuDNN, FlashAttention 2, FlexAttention; writes CSV and PNG.

    python3 bench/attention.py [--pass forward|backward|both] [--suite dense,masks,grouped]
        [--dims 64,128] [--seqlens 512,4096] [--output bench/results/attention_h200]

One process, one run: the libraries take turns on the same tensors, with a rest before each, so
that all meet the same clock. bf16, 16,384 tokens in all (32,768 at 32k), 2048 // head_dim heads,
or 16 where the head dim does not divide 2048; grouped: 32 heads, 32 and 8 kv heads. A figure is
the median over rounds of calls; forward passes are replayed from a CUDA graph, so no library's
launch overhead counts; autograd's cannot be, and are queued one behind the other, as Rota's are.
FLOP: 4 b h d for each allowed (query, key) pair, 2.5 times that backward. `difference`: of the
result against cuDNN's (masks: against FlexAttention's), relative; one beyond the dtype's own error
is reported and fails the run.
"""

import argparse
import csv
import datetime
import statistics
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import librota

ROUNDS, ROUND_MS, REST_S = 4, 6.0, 0.03
DIFFERENCE_MAX = 0.01
FIELDS = ["pass", "head_dim", "mask", "seqlen", "library", "tflops", "ms", "spread", "difference"]
COLORS = {"Rota": "#c02020", "cuDNN": "#4a78b0", "FA2": "#8a8a8a", "FlexAttention": "#5a9a5a"}


# ---- Timing ----


def graphed(function, calls):
    """A CUDA graph of several calls, or the plain calls where they cannot be captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        with torch.cuda.stream(stream):
            function()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(calls):
                function()
        return graph.replay
    except RuntimeError as error:
        print(f"# not captured, timed with its launches: {str(error).splitlines()[0]}")
        torch.cuda.synchronize()
        return repeated(function, calls)


def repeated(function, calls):
    return lambda: [function() for _ in range(calls)]


def elapsed(function):
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    stop.record()
    stop.synchronize()
    return start.elapsed_time(stop)


def measure(functions, capture=True):
    """Median milliseconds of a call of each function and the spread over rounds."""
    replays = []
    for function in functions:
        function()
        calls = max(2, int(ROUND_MS / max(elapsed(function), 1e-3)))
        replay = graphed(function, calls) if capture else repeated(function, calls)
        replays.append((replay, calls))
    samples = [[] for _ in functions]
    for _ in range(ROUNDS):
        for (replay, calls), sample in zip(replays, samples):
            time.sleep(REST_S)
            replay()
            sample.append(elapsed(replay) / calls)
    return [(statistics.median(s), (max(s) - min(s)) / statistics.median(s)) for s in samples]


def difference(a, b):
    return ((a.double() - b.double()).norm() / b.double().norm()).item()


# ---- What is timed ----


class Case:
    """Tensors [batch, row, head, dim] of one shape, and the libraries' calls on them."""

    def __init__(self, head_dim, seqlen, heads=None, kv_heads=None):
        self.head_dim, self.seqlen = head_dim, seqlen
        self.heads = heads or (2048 // head_dim if 2048 % head_dim == 0 else 16)
        self.kv_heads = kv_heads or self.heads
        self.batch = max(1, (32768 if seqlen >= 32768 else 16384) // seqlen)
        self.q, self.k, self.v, self.d_o = (
            torch.randn(
                (self.batch, seqlen, count, head_dim), device="cuda", dtype=torch.bfloat16
            )
            for count in (self.heads, self.kv_heads, self.kv_heads, self.heads)
        )

    def flops(self, share, direction):
        pairs = share * self.seqlen * self.seqlen
        forward = 4.0 * self.batch * self.heads * pairs * self.head_dim
        return forward * (2.5 if direction == "backward" else 1.0)

    def rota(self, mask, direction, tensors=None):
        script = f"return rota.attention{{head_dim = {self.head_dim}, heads = {self.heads}, "
        model = librota.Model(f"{script} kv_heads = {self.kv_heads}, mask = {mask}}}")
        call = model.attention(self.q, self.k, self.v, tensors=tensors)
        call.forward()
        if direction == "forward":
            return call.forward
        return lambda: call.backward(self.d_o)

    def torch_call(self, attention, direction):
        """attention(q, k, v) of tensors [batch, head, row, dim]; results as Rota's."""
        q, k, v = (t.transpose(1, 2).detach() for t in (self.q, self.k, self.v))
        if direction == "forward":

            def forward():
                with torch.no_grad():
                    return attention(q, k, v).transpose(1, 2)

            return forward
        inputs = [t.requires_grad_() for t in (q, k, v)]
        out, d_out = attention(*inputs), self.d_o.transpose(1, 2)

        def backward():
            gradients = torch.autograd.grad(out, inputs, d_out, retain_graph=True)
            return [t.transpose(1, 2) for t in gradients]

        return backward

    def sdpa(self, backend, causal, direction):
        how = {"is_causal": causal, "enable_gqa": self.heads != self.kv_heads}

        def attention(q, k, v):
            with sdpa_kernel(backend):
                return torch.nn.functional.scaled_dot_product_attention(q, k, v, **how)

        return self.torch_call(attention, direction)


def checked(result, reference):
    results = result if isinstance(result, (list, tuple)) else [result]
    references = reference if isinstance(reference, (list, tuple)) else [reference]
    return max(difference(a, b) for a, b in zip(results, references))


class Table:
    """The figures so far, written to a CSV file after each case; a library that does not serve a
    case is left out of it, with a word on standard output."""

    def __init__(self, title, path):
        self.title, self.path = title, path
        self.lines, self.failures = [], 0

    def write(self):
        with open(self.path, "w", newline="") as file:
            file.write(f"# {self.title}\n")
            writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.lines)

    def run(self, case, mask, share, direction, makers):
        calls, reference = {}, None
        for name, make in makers.items():
            try:
                calls[name] = make()
                calls[name]()
            except Exception as error:  # any library, any reason
                calls.pop(name, None)
                print(f"# {name}, head_dim {case.head_dim} {mask}: {str(error).splitlines()[0]}")
        peers = [name for name in calls if name != "Rota"]
        if peers:
            reference = calls[peers[0]]()
        differences = {
            name: checked(call(), reference) if reference is not None else float("nan")
            for name, call in calls.items()
        }
        flops = case.flops(share, direction)
        timings = measure(list(calls.values()), capture=direction == "forward")
        for name, (ms, spread) in zip(calls, timings):
            bad = not differences[name] < DIFFERENCE_MAX
            self.failures += bad
            line = [direction, case.head_dim, mask, case.seqlen, name, f"{flops / ms / 1e9:.0f}"]
            line += [f"{ms:.4f}", f"{spread:.3f}", f"{differences[name]:.1e}"]
            self.lines.append(dict(zip(FIELDS, line)))
            print(",".join(map(str, line)) + ("  <-- WRONG" if bad else ""), flush=True)
        self.write()


def run_dense(table, options, direction):
    for head_dim in options.dims:
        for causal in (False, True):
            for seqlen in options.seqlens:
                case, mask = Case(head_dim, seqlen), "causal" if causal else "full"
                makers = {
                    "Rota": lambda: case.rota(mask, direction),
                    "cuDNN": lambda: case.sdpa(SDPBackend.CUDNN_ATTENTION, causal, direction),
                    "FA2": lambda: case.sdpa(SDPBackend.FLASH_ATTENTION, causal, direction),
                }
                table.run(case, mask, 0.5 if causal else 1.0, direction, makers)


def run_grouped(table, options, direction):
    for seqlen in options.grouped_seqlens:
        for kv_heads in (32, 8):
            case = Case(128, seqlen, 32, kv_heads)
            makers = {
                "Rota": lambda: case.rota("causal", direction),
                "cuDNN": lambda: case.sdpa(SDPBackend.CUDNN_ATTENTION, True, direction),
            }
            table.run(case, f"causal 32/{kv_heads} heads", 0.5, direction, makers)


DOCUMENT, WINDOW = 2048, 1024  # tokens


def run_masks(table, options, direction):
    import torch._functorch.config
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._functorch.config.donated_buffer = False  # a graph's backward pass is replayed
    flex = torch.compile(flex_attention)
    for seqlen in options.mask_seqlens:
        case = Case(128, seqlen)
        document = (torch.arange(seqlen, device="cuda", dtype=torch.int32) // DOCUMENT).repeat(
            case.batch, 1
        )
        q, k = (torch.arange(seqlen, device="cuda").view(s) for s in ((-1, 1), (1, -1)))
        masks = {
            "window": (
                f"window({WINDOW}, 0)",
                None,
                lambda b, h, q, k: (k <= q) & (q - k <= WINDOW),
            ),
            "document": (
                "causal & document",
                {"document": document},
                lambda b, h, q, k: (k <= q) & (document[b, q] == document[b, k]),
            ),
        }
        for name, (script, tensors, allows) in masks.items():
            share = allows(0, 0, q, k).float().mean().item()
            blocks = create_block_mask(allows, case.batch, None, seqlen, seqlen, device="cuda")
            makers = {
                "Rota": lambda: case.rota(script, direction, tensors),
                "FlexAttention": lambda: case.torch_call(
                    lambda q, k, v: flex(q, k, v, block_mask=blocks), direction
                ),
            }
            table.run(case, name, share, direction, makers)


# ---- Results ----


def plot(table, path):
    """One panel for each (pass, head dim, mask): TFLOP/s by sequence length."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = list(dict.fromkeys((x["pass"], x["head_dim"], x["mask"]) for x in table.lines))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    size = (3.6 * columns, 2.9 * rows + 0.5)
    figure, axes = pyplot.subplots(rows, columns, figsize=size, squeeze=False)
    for axis, panel in zip(axes.flat, panels):
        lines = [x for x in table.lines if (x["pass"], x["head_dim"], x["mask"]) == panel]
        for library in dict.fromkeys(x["library"] for x in lines):
            points = [(x["seqlen"], float(x["tflops"])) for x in lines if x["library"] == library]
            axis.plot(*zip(*points), "o-", ms=3, lw=1.5, color=COLORS[library], label=library)
        axis.set_title("{} d {} {}".format(*panel), fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("TFLOP/s", fontsize=8)
        axis.set_xlabel("sequence length", fontsize=8)
        axis.tick_params(labelsize=7)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    figure.suptitle(table.title, fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def integers(text):
    return [int(x) for x in text.split(",")]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pass", dest="direction", default="forward")
    parser.add_argument("--suite", default="dense,masks,grouped")
    parser.add_argument("--dims", type=integers, default=[64, 128])
    parser.add_argument("--seqlens", type=integers, default=[2**n for n in range(9, 16)])
    parser.add_argument("--mask-seqlens", type=integers, default=[4096, 16384])
    parser.add_argument("--grouped-seqlens", type=integers, default=[1024, 4096])
    parser.add_argument("--output", default="bench/results/attention", help="without .csv, .png")
    options = parser.parse_args()
    torch.manual_seed(0)
    title = (
        f"{torch.cuda.get_device_name()}, {datetime.date.today()}, torch {torch.__version__}, "
        f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}; bf16"
    )
    print(f"# {title}\n{','.join(FIELDS)}")
    table = Table(title, options.output + ".csv")
    both = ["forward", "backward"]
    for direction in both if options.direction == "both" else [options.direction]:
        if "dense" in options.suite:
            run_dense(table, options, direction)
        if "masks" in options.suite:
            run_masks(table, options, direction)
        if "grouped" in options.suite:
            run_grouped(table, options, direction)
    plot(table, options.output + ".png")
    sys.exit(1 if table.failures else 0)


if __name__ == "__main__":
    main()
