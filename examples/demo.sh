#!/bin/sh
# The main job on real input, explained: a model in Lua becomes CUDA, a cubin, and reproducible outputs and gradients.
# Usage: demo.sh [BUILD]. Works without a GPU (on the CPU device) and without NVRTC (nothing is compiled then).
set -eu
build=${1:-build}
rota=$build/rota
here=$(dirname "$0")
model=$here/models/documents.lua
input=$here/../tests/data/minilm_qkv.safetensors
scratch=$build/demo
mkdir -p "$scratch"
say() { printf '\n\033[1m%s\033[0m\n' "$*"; }

say "1. A model: packed documents, each seen causally (queries, keys and values of a real transformer on real text)"
grep -v '^--' "$model"

say "2. What Rota found on this machine"
"$rota" doctor | grep -v '^ ' | sed -e 's/ Tried:$//' -e '/^$/d'

say "3. The generated CUDA, one self-contained file per direction"
for direction in forward backward; do
  "$rota" emit "$model" --direction $direction --output "$scratch/$direction.cu"
  echo "$scratch/$direction.cu: $(wc -l <"$scratch/$direction.cu") lines, $(wc -c <"$scratch/$direction.cu") bytes; the mask in it:"
  grep -A1 -E '^// .*document' "$scratch/$direction.cu" | head -n 1
done

say "4. Compiled with NVRTC, then found in the cache"
if "$rota" compile "$model"; then
  "$rota" compile "$model"
else
  echo "(nothing is compiled without NVRTC; the CPU device runs all the same)"
fi

say "5. Forward and backward, ten runs with poisoned outputs, against dense attention in fp64"
"$rota" run "$model" --input "$input" --backward --check --repeat 10

say "6. The mask's tile map and the order of visits"
"$rota" plan "$model" --input "$input" --direction backward --svg "$scratch/map.svg"
echo "picture: $scratch/map.svg"
