"""A mask of one's own, from PyTorch: causal text in which images see themselves in both
directions, packed documents, and a bias that falls with the distance.

    python examples/custom_mask.py               # on a CPU
    python examples/custom_mask.py --device cuda

Checks the result against dense fp64 attention.
"""

import argparse

import rota
import torch


def dense(q, k, v, allowed, bias):
    """The same in fp64 with the whole matrix of scores, [batch, heads, tokens, tokens]."""
    q, k, v = (t.double().transpose(1, 2) for t in (q, k, v))
    s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
    return (s.masked_fill(~allowed, float("-inf")).softmax(-1) @ v).transpose(1, 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    device = parser.parse_args().device
    torch.manual_seed(0)
    batch, tokens, heads, dim = 2, 200, 4, 64
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (
        torch.randn(batch, tokens, heads, dim, device=device, dtype=dtype, requires_grad=True)
        for _ in range(3)
    )

    # What the mask needs to know: which document and which image (0: text) a token belongs to.
    # Masks are planned with on the host, so their tensors may as well stay there.
    place = torch.arange(tokens).expand(batch, tokens)
    document = (place // 90).to(torch.int32)
    image = torch.where(place % 90 < 20, 1 + place // 90, 0).to(torch.int32)

    # The mask in Rota's expressions: composed, compiled into the kernel, empty tiles skipped.
    same_image = 'where("image[b, q] == image[b, k] and image[b, q] > 0")'
    mask = f"document & (causal | {same_image})"
    score = 'score("s - slope[h] * abs(q - k)")'
    slope = torch.tensor([0.5**h for h in range(1, heads + 1)], device=device)
    tensors = {"document": document, "image": image, "slope": slope}
    o = rota.attention(q, k, v, mask=mask, score=score, tensors=tensors)
    d_o = torch.randn_like(o)
    gradients = torch.autograd.grad(o, (q, k, v), d_o)

    # The same with tensors of all pairs.
    distance = (place[0][:, None] - place[0]).to(device)
    pairs = [t.to(device) for t in (document[:, :, None] == document[:, None],
                                    image[:, :, None] == image[:, None],
                                    image[:, :, None] > 0)]  # fmt: skip
    allowed = (pairs[0] & ((distance >= 0) | (pairs[1] & pairs[2])))[:, None]
    bias = -slope[:, None, None].double() * distance.abs()
    wanted = dense(q, k, v, allowed, bias)
    exact = torch.autograd.grad(wanted, (q, k, v), d_o.double())

    worst = (o.double() - wanted).abs().max().item()
    print(f"o     differs from dense fp64 attention by {worst:.2e}")
    for name, found, right in zip(("dq", "dk", "dv"), gradients, exact):
        error = (found.double() - right.double()).abs().max().item()
        worst = max(worst, error)
        print(f"{name}    differs by {error:.2e}")
    again = torch.autograd.grad(
        rota.attention(q, k, v, mask=mask, score=score, tensors=tensors), (q, k, v), d_o
    )
    same = all(torch.equal(a, b) for a, b in zip(gradients, again))
    print(f"same bits again: {'yes' if same else 'NO'}")
    print(f"digest: {rota.digest(q, k, v, mask=mask, score=score, tensors=tensors)}")
    raise SystemExit(0 if same and worst < (1e-4 if dtype == torch.float32 else 0.1) else 1)


if __name__ == "__main__":
    main()
