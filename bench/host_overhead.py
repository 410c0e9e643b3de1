"""Host time of a forward + backward pair: what calling costs beyond the kernels.

    python bench/host_overhead.py [--device cuda] [--calls 2000]

On a GPU the calls are queued and not waited for: as long as the kernels are short, this is the
time that the host needs. On a CPU one token is used and the time inside librota is taken off.
PyTorch's own attention (SDPA; on a GPU its flash backend) beside it, in the same run.
"""

import argparse
import contextlib
import time

import rota
import torch
import torch.nn.functional as F
from rota import _plans


def pair(attention, q, k, v, d_o):
    o = attention(q, k, v)
    torch.autograd.grad(o, (q, k, v), d_o)


def measure(attention, inputs, calls, synchronize):
    """Microseconds per pair, the best of seven rounds (other load only ever adds)."""
    for _ in range(100):
        pair(attention, *inputs)
    best = float("inf")
    for _ in range(7):
        synchronize()
        started = time.perf_counter()
        for _ in range(calls // 7):
            pair(attention, *inputs)
        best = min(best, (time.perf_counter() - started) / (calls // 7))
        synchronize()
    return 1e6 * best


def inside_librota(inputs, calls):
    """Microseconds per pair spent in rota_run, the least of all calls."""
    spent, run = [], _plans.Plan.run

    def timed(*arguments):
        started = time.perf_counter()
        run(*arguments)
        spent.append(time.perf_counter() - started)

    _plans.Plan.run = timed
    try:
        for _ in range(calls):
            pair(rota_causal, *inputs)
    finally:
        _plans.Plan.run = run
    return 1e6 * (min(spent[0::2]) + min(spent[1::2]))


def rota_causal(q, k, v):
    return rota.attention(q, k, v, mask="causal")


def torch_causal(q, k, v):
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--calls", type=int, default=2000)
    options = parser.parse_args()
    on_gpu = options.device == "cuda"
    shape = (1, 128, 4, 64) if on_gpu else (1, 1, 1, 8)
    dtype = torch.bfloat16 if on_gpu else torch.float32
    q, k, v, d_o = (torch.randn(shape, device=options.device, dtype=dtype) for _ in range(4))
    inputs = [t.requires_grad_() for t in (q, k, v)] + [d_o]
    synchronize = torch.cuda.synchronize if on_gpu else lambda: None
    name = torch.cuda.get_device_name() if on_gpu else "CPU"
    print(f"{name}, torch {torch.__version__}, {list(shape)} {dtype}, microseconds per pair")

    found = measure(rota_causal, inputs, options.calls, synchronize)
    line = f"rota   {found:7.1f}"
    if not on_gpu:
        inner = inside_librota(inputs, options.calls)
        line += f", of which {inner:.1f} inside librota: {found - inner:.1f} beyond"
    print(line)
    backend = contextlib.nullcontext()
    if on_gpu:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = sdpa_kernel(SDPBackend.FLASH_ATTENTION)
    with backend:
        print(f"torch  {measure(torch_causal, inputs, options.calls, synchronize):7.1f}")


if __name__ == "__main__":
    main()
