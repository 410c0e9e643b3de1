#!/bin/sh
# The command as a user meets it: exit statuses, messages, JSON, and source that is the same in every process and locale.
# Usage: command.sh ROTA SOURCE_DIRECTORY
. "$(dirname "$0")/command_checks.sh"
json() { python3 -m json.tool "$scratch/out"; }
model='return rota.attention{head_dim = 64, heads = 4, kv_heads = 2, mask = causal & (window(100, 0) | sinks(4))}'

check "help exits 0" status 0 "$rota" --help
check "help names the commands" out_has "doctor"
check "version exits 0" status 0 "$rota" --version
check "no command is a usage error" status 64 "$rota"
check "an unknown command is a usage error" status 64 "$rota" frobnicate
check "... and is named" err_has "no command 'frobnicate'"
check "a missing model is a usage error" status 64 "$rota" emit
check "an unknown option is a usage error" status 64 "$rota" emit --frobnicate
for command in emit compile plan io run export cache doctor; do
  check "$command --help exits 0" status 0 "$rota" $command --help
done
check "a missing file fails" status 1 "$rota" emit "$scratch/none.lua"
check "... and is named" err_has "none.lua"
check "a wrong field fails" status 1 "$rota" emit -e 'return rota.attention{head_dims = 64}'
check "... with the nearest name" err_has "did you mean 'head_dim'"
check "a wrong expression fails" status 1 "$rota" emit -e 'return rota.attention{head_dim = 64, mask = where "k <= w"}'
check "... with a caret" err_has "\^"
check "bad lengths are a usage error" status 64 "$rota" plan -e "$model" --seqlen 12y
check "an unknown architecture fails" status 1 "$rota" emit -e "$model" --arch sm_12345
check "an unknown parameter fails" status 1 "$rota" plan -e "$model" --set nothing=3
wide='return rota.attention{head_dim = 512, heads = 4, mask = causal}'
check "a workspace limit is kept" status 0 "$rota" plan -e "$wide" --arch sm_90 --seqlen 16384 --workspace 64 --json
check "... to the byte, nearly" python3 -c "import json, sys; assert all(p['workspace_bytes'] < 65 << 20 for p in json.load(open(sys.argv[1])))" "$scratch/out"
check "one too small is refused" status 1 "$rota" plan -e "$wide" --arch sm_90 --seqlen 16384 --workspace 8
check "... with what is needed" err_has "raise the limit"

# Source: same bytes in several processes, under other locales and another directory.
"$rota" emit -e "$model" >"$scratch/first.cu"
check "emit writes source" grep -q 'extern "C" __global__' "$scratch/first.cu"
for locale in C C.UTF-8 de_DE.UTF-8 tr_TR.UTF-8; do
  for direction in forward backward; do
    LC_ALL=$locale "$rota" emit -e "$model" -d $direction -o "$scratch/$direction.$locale.cu"
    cp "$scratch/$direction.$locale.cu" "$scratch/this.cu"
    check "emit is the same under $locale ($direction)" cmp "$scratch/this.cu" "$scratch/$direction.C.cu"
  done
done
(cd / && "$rota" emit -e "$model") >"$scratch/elsewhere.cu"
check "emit is the same elsewhere" cmp "$scratch/first.cu" "$scratch/elsewhere.cu"

check "plan exits 0" status 0 "$rota" plan -e "$model" --seqlen 500x300 --svg "$scratch/map.svg"
check "plan draws" grep -q '</svg>' "$scratch/map.svg"
check "the drawing is XML" python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$scratch/map.svg"
check "plan prints JSON" status 0 "$rota" plan -e "$model" --seqlen 500 --json
check "... that parses" json
check "run on the CPU is right and repeatable" status 0 "$rota" run -e "$model" --device cpu --seqlen 130x201 --batch 2 \
  --backward --check --repeat 3
check "... and says so" out_has "same bits in 3 of 3 runs"
check "run takes a parameter's value" status 0 "$rota" run -e "$model" --device cpu --seqlen 64 --set window_left=7 --check
check "run prints JSON" status 0 "$rota" run -e "$model" --device cpu --seqlen 64 --json --check
check "... that parses" json
check "run reads a file" status 0 "$rota" run "$source/examples/models/documents.lua" --device cpu --backward --check \
  --input "$source/tests/data/minilm_qkv.safetensors" --output "$scratch/results.safetensors"
check "... and writes one" test -s "$scratch/results.safetensors"
check "a missing tensor is named" status 1 "$rota" run "$source/examples/models/documents.lua" --device cpu --seqlen 64
check "... with what to do" err_has "document"
check "a file that is none fails" status 1 "$rota" run -e "$model" --input "$source/LICENSE"
check "lengths 0 are fine" status 0 "$rota" run -e "$model" --device cpu --seqlen 0x5 --backward --check
for file in "$source"/examples/models/*.lua; do
  check "emit $(basename "$file")" status 0 "$rota" emit "$file" --direction backward --arch sm_90
done

check "plan explains" status 0 "$rota" plan -e "$model" --seqlen 500 --arch sm_90 --explain
check "... as a model" out_has "modelled, not measured"
check "... in JSON too" status 0 "$rota" plan -e "$model" --seqlen 500 --arch sm_90 --explain --json
check "... that parses" json
check "... and ranks" out_has '"algorithm": "materialised"'

check "io counts" status 0 "$rota" io --n 32768 --d 128 --m 4096
check "... and says the side" out_has "small-cache side"
check "io prints JSON" status 0 "$rota" io --n 20000 --d 128 --m 1000 --form paper --json
check "... that parses" json
check "... with the bound" out_has '"lower_bound": '
check "... and the crossing" out_has '"crossing_m": 16384.0'
check "io says that M is too small" status 0 "$rota" io --n 1000 --d 128 --m 100
check "... for an algorithm" out_has "large_cache  M is too small: at least 900"
check "io takes a mask and draws" status 0 "$rota" io --n 500 --d 16 --m 300 --mask 'causal & window(50, 0)' \
  --svg "$scratch/io.svg"
check "... XML" python3 -c "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])" "$scratch/io.svg"
check "... over Z_QK" grep -q 'Z_QK (allowed pairs)' "$scratch/io.svg"
if command -v rsvg-convert >/dev/null; then
  check "io draws PNG" status 0 "$rota" io --n 500 --d 16 --m 300 --png "$scratch/io.png"
  check "... that is one" grep -q PNG "$scratch/io.png"
fi
PATH_BEFORE=$PATH
PATH=/nonexistent
check "without rsvg-convert --png is refused" status 1 "$rota" io --n 500 --d 16 --m 300 --png "$scratch/none.png"
PATH=$PATH_BEFORE
check "... with what to install" err_has "librsvg2-bin"
check "io refuses a mask of tensors" status 1 "$rota" io --n 500 --d 16 --m 300 --mask 'document'
check "... by name" err_has "reads the tensor 'document'"
check "io needs its sizes" status 64 "$rota" io --n 500
check "io refuses a size of 0" status 64 "$rota" io --n 0 --d 16 --m 100
check "io refuses a length beyond its range" status 1 "$rota" io --n 100000000 --d 16 --m 100

check "doctor exits 0" status 0 "$rota" doctor
check "doctor prints JSON" status 0 "$rota" doctor --json
check "... that parses" json
if command -v cc >/dev/null; then # a GPU that is none, as the host tests have it
  mkdir -p "$scratch/driver"
  check "a stand-in for the driver" cc -std=gnu11 -shared -fPIC -o "$scratch/driver/libcuda.so.1" "$source/tests/host/fake_driver.c"
  check "doctor with a GPU" status 0 env LD_LIBRARY_PATH="$scratch/driver" "$rota" doctor
  check "... says whose kernels serve" out_has "cuda:0 bf16, head_dim 128, forward: hopper"
fi
check "cache list exits 0" status 0 "$rota" cache list --json
check "... and parses" json
check "cache verify exits 0" status 0 "$rota" cache verify
check "cache clear exits 0" status 0 "$rota" cache clear
check "cache knows no other action" status 1 "$rota" cache frobnicate
check "without a compiler the message names the library" env ROTA_NVRTC=/nonexistent/libnvrtc.so sh -c \
  "! '$rota' compile -e 'return rota.attention{head_dim = 64}' 2>'$scratch/err' && grep -q /nonexistent '$scratch/err'"
if "$rota" doctor | grep -q '^ok   nvrtc'; then
  check "compile exits 0" status 0 "$rota" compile -e "$model" --direction forward --arch sm_80
  check "compile hits the cache then" status 0 "$rota" compile -e "$model" --direction forward --arch sm_80 --json
  check "... and says so" out_has '"cache_hit": true'
  check "... and whose kernels serve" out_has '"kernels": "portable"'
  check "compile says why no better ones do" status 0 "$rota" compile -e "$model" --direction forward --arch sm_90 --layout any
  check "... by architecture" out_has "portable kernels (hopper: the copy engine needs ROTA_LAYOUT_ALIGNED)"
else
  echo "SKIPPED: compile (no NVRTC here)"
fi
if command -v nvcc >/dev/null; then
  for direction in forward backward; do
    check "nvcc compiles the emitted file alone ($direction)" status 0 nvcc -arch=sm_80 -std=c++17 -cubin \
      -o "$scratch/$direction.cubin" "$scratch/$direction.C.cu"
  done
else
  echo "SKIPPED: nvcc (not installed)"
fi
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
