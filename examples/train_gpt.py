"""Trains a small GPT twice from the same seed, with Rota's attention and with PyTorch's, and says
whether losses and weights are the same bit for bit.

    python examples/train_gpt.py                 # on a CPU, about a minute
    python examples/train_gpt.py --device cuda   # on a GPU, at a realistic size

The text is Python's own language reference, which every Python carries (pydoc_data.topics). All
settings but the attention are the same in all runs. Writes a plot (SVG) and the figures (JSON).
"""

import argparse
import hashlib
import json
import math
import os
import time
from pathlib import Path
from pydoc_data.topics import topics

# One workspace per stream: what cuBLAS needs for its results to repeat.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
# On a CPU that others use too, threads that spin while they wait cost half the speed.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import rota
import torch
import torch.nn.functional as F
from torch import nn

SIZES = {
    "cpu": dict(layers=2, width=128, heads=4, context=128, batch=8, steps=100),
    "cuda": dict(layers=12, width=768, heads=12, context=2048, batch=8, steps=200),
}


def rota_attention(q, k, v):
    return rota.attention(q, k, v, mask="causal")  # the one line


def torch_attention(q, k, v):
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)


class Block(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1))
        x = x + self.out(self.attention(*qkv.unbind(2)).flatten(2))
        return x + self.mlp(self.norm_2(x))


class ByteEmbedding(nn.Module):
    """nn.Embedding as a matrix product: on a GPU the gradient of nn.Embedding adds rows in no
    fixed order, and would hide what attention does."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(256, width))

    def forward(self, tokens):
        return F.one_hot(tokens, 256).to(self.weight.dtype) @ self.weight


class GPT(nn.Module):
    """Over bytes: no tokeniser to fetch."""

    def __init__(self, layers, width, heads, context, attention):
        super().__init__()
        self.token, self.place = ByteEmbedding(width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, attention) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens):
        x = self.token(tokens) + self.place.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def text():
    whole = "\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(whole.encode()), dtype=torch.uint8).long()


def weights_hash(model):
    """Of every bit of every weight."""
    digest = hashlib.sha256()
    for weight in model.parameters():
        digest.update(weight.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def train(attention, size, device, data, seed=0):
    """Returns the losses, the hash of the final weights, the weights, and seconds per step (of
    those after the first few, in which kernels are compiled)."""
    torch.manual_seed(seed)
    shape = {name: size[name] for name in ("layers", "width", "heads", "context")}
    model = GPT(**shape, attention=attention).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    order = torch.Generator().manual_seed(seed)
    losses, warm = [], min(5, size["steps"] - 1)
    for step in range(size["steps"]):
        if step == warm:
            if device == "cuda":
                torch.cuda.synchronize()
            started = time.perf_counter()
        starts = torch.randint(len(data) - size["context"] - 1, (size["batch"],), generator=order)
        rows = torch.stack([data[s : s + size["context"] + 1] for s in starts]).to(device)
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            logits = model(rows[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        losses.append(loss.detach())
    losses = torch.stack(losses).tolist()
    seconds = (time.perf_counter() - started) / (size["steps"] - warm)
    weights = [w.detach().cpu() for w in model.parameters()]
    return losses, weights_hash(model), weights, seconds


def compare(name, attention, size, device, data):
    """Two runs of the same training, and what differs between them."""
    (first, hash_1, weights_1, seconds), (second, hash_2, weights_2, again) = (
        train(attention, size, device, data) for _ in range(2)
    )
    seconds = min(seconds, again)
    drift = max((a - b).abs().max().item() for a, b in zip(weights_1, weights_2))
    apart = [abs(a - b) for a, b in zip(first, second)]
    same = hash_1 == hash_2 and first == second
    print(f"{name:6} loss {first[0]:.4f} -> {first[-1]:.4f}, {1e3 * seconds:.1f} ms a step")
    print(f"       first run  {hash_1[:32]}\n       second run {hash_2[:32]}")
    if same:
        print("       losses and weights are the same bit for bit")
    else:
        at = next((i for i, x in enumerate(apart) if x), len(apart))
        print(f"       they DIFFER: losses from step {at}, weights by up to {drift:.3g}")
    return dict(losses=[first, second], hashes=[hash_1, hash_2], apart=apart, drift=drift,
                same=same, seconds_per_step=seconds)  # fmt: skip


WIDTH, HEIGHT, LEFT, GAP = 720, 190, 64, 64  # of a panel of the plot, in pixels
COLOURS = {"rota": "#1f6fb4", "torch": "#d1602a"}


def panel(top, title, steps, ticks, place, lines):
    """SVG of one panel. ticks: (value, text); place: value -> 0 (bottom) to 1; lines: {name:
    values}. The first line is wider, so that it stays visible under the second."""

    def y(value):
        return top + HEIGHT * (1 - place(value))

    right = WIDTH - 16
    parts = [f'<text x="{LEFT}" y="{top - 12}" font-weight="bold">{title}</text>']
    for value, text in ticks:
        parts.append(f'<path d="M{LEFT} {y(value):.1f}H{right}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>'
        )
    for name, values in lines.items():
        across = (right - LEFT) / max(steps - 1, 1)
        points = " ".join(f"{LEFT + across * i:.1f},{y(v):.1f}" for i, v in enumerate(values))
        stroke = f'stroke="{COLOURS[name]}" stroke-width="{4 if name == "rota" else 1.5}"'
        parts.append(f'<polyline fill="none" {stroke} points="{points}"/>')
    bottom = f'y="{top + HEIGHT + 18}"'
    parts.append(f'<text x="{LEFT}" {bottom}>step 0</text>')
    parts.append(f'<text x="{right}" {bottom} text-anchor="end">step {steps - 1}</text>')
    return parts


def plot(results, caption, path):
    """Losses above, the two runs' difference below (logarithmic), as SVG."""
    steps = max(len(r["apart"]) for r in results.values())
    top = math.ceil(max(max(r["losses"][0]) for r in results.values()))
    low, high = -8, -5
    for result in results.values():
        high = max(high, math.ceil(math.log10(max(result["apart"]) or 1e-9)))

    def share(value):  # 0 lies a decade below the least that is drawn
        return max(math.log10(value or 1e-99) - low + 1, 0) / (high - low + 1)

    decades = [(10.0**d, f"1e{d}") for d in range(low, high + 1)]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * (HEIGHT + GAP) + 16}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        *panel(36, f"Loss ({caption})", steps, [(x, x) for x in range(0, top + 1, 2)],
               lambda v: v / top, {n: r["losses"][0] for n, r in results.items()}),
        *panel(36 + HEIGHT + GAP, "How far apart the losses of two runs from one seed are", steps,
               [(0, "0"), *decades], share, {n: r["apart"] for n, r in results.items()}),
    ]  # fmt: skip
    for row, (name, result) in enumerate(results.items()):
        verdict = "the same bits" if result["same"] else "different weights"
        parts.append(f'<text x="{WIDTH - 28}" y="{64 + 18 * row}" fill="{COLOURS[name]}" '
                     f'text-anchor="end">{name}: two runs give {verdict}</text>')  # fmt: skip
    path.write_text("\n".join([*parts, "</svg>\n"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=SIZES, default="cpu")
    for name in SIZES["cpu"]:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--output", type=Path, default=Path("train_gpt"))
    options = parser.parse_args()
    size = dict(SIZES[options.device])
    size.update({n: getattr(options, n) for n in size if getattr(options, n) is not None})
    print(f"torch {torch.__version__}, rota {rota.version()}, {options.device}, {size}")

    data, results = text(), {}
    where = torch.cuda.get_device_name() if options.device == "cuda" else "CPU"
    figures = dict(size=size, device=where, torch=torch.__version__, results=results)
    for name, attention in (("rota", rota_attention), ("torch", torch_attention)):
        results[name] = compare(name, attention, size, options.device, data)
        options.output.with_suffix(".json").write_text(json.dumps(figures, indent=1))
    print(f"rota digest of all plans: {rota.digest()}")
    shape = f"{size['layers']} layers of width {size['width']}, {size['context']} tokens"
    plot(results, f"{shape}, {where}", options.output.with_suffix(".svg"))
    print(f"wrote {options.output.with_suffix('.svg')} and {options.output.with_suffix('.json')}")
    raise SystemExit(0 if results["rota"]["same"] else 1)


if __name__ == "__main__":
    main()
