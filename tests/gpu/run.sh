#!/bin/sh
# Everything that needs a GPU, in about five minutes on 16 cores: correctness side by side (compiling takes most of the time), then
# timings alone. Needs torch and, for the sanitizer part, compute-sanitizer. Logs go to OUTPUT, a short table to standard output.
# ROTA_CACHE_DIR may hold cubins compiled elsewhere (test_numbers --compile sm_90, rota compile -a sm_90): that saves most of the time.
# Usage: run.sh BUILD OUTPUT [bench]      BUILD holds librota.so and tests/ (or the test programs beside it)
set -u
build=$1
out=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$out"
export ROTA_TEST_SOURCE=$here ROTA_LIBRARY=$build/librota.so PYTHONPATH=$here/bench PYTHONUNBUFFERED=1
export ROTA_CACHE_DIR=${ROTA_CACHE_DIR:-$out/cache}
programs=$build/tests
[ -d "$programs" ] || programs=$build
failed=0

start() { # start NAME SECONDS COMMAND...: in the background, with its exit status in OUTPUT/NAME.status
  name=$1
  seconds=$2
  shift 2
  (timeout "$seconds" "$@" >"$out/$name.log" 2>&1; echo $? >"$out/$name.status") &
}
sanitize() { timeout 150 compute-sanitizer --tool "$1" --error-exitcode 9 python3 "$here/tests/gpu/sanitize.py"; }

start launch 120 "$programs/test_launch"
start copy_engine 120 "$programs/test_copy_engine"
start workers 200 env OMP_NUM_THREADS=4 "$programs/test_workers"
start head_dims 300 env OMP_NUM_THREADS=4 "$programs/test_head_dims"
start cases 400 env OMP_NUM_THREADS=4 "$programs/test_cases_gpu"
start numbers 400 env OMP_NUM_THREADS=8 "$programs/test_numbers"
start compare 400 python3 "$here/tests/gpu/compare_torch.py" --quick
if python3 -c "import pytest" 2>/dev/null; then
  start python 400 env OMP_NUM_THREADS=2 python3 -m pytest -q -p no:cacheprovider -W ignore "$here/python/tests/test_cuda.py"
fi
if command -v compute-sanitizer >/dev/null; then
  (for tool in memcheck racecheck; do
    sanitize $tool >"$out/$tool.log" 2>&1
    echo $? >"$out/$tool.status"
  done) &
fi
wait
for status in "$out"/*.status; do
  name=$(basename "$status" .status)
  code=$(cat "$status")
  [ "$code" = 0 ] || failed=$((failed + 1))
  echo "$name: exit status $code: $(grep -v '^$' "$out/$name.log" | tail -n 1)"
done
grep -h -E 'FAIL|ERROR|TOO LARGE' "$out"/*.log | head -n 20
if [ "${3:-}" = bench ]; then
  python3 "$here/bench/attention.py" --output "$out/attention"
  python3 "$here/bench/backward.py" --output "$out/backward.csv"
  PYTHONPATH=$here/python python3 "$here/bench/host_overhead.py" --device cuda --output "$out/host_overhead.csv"
fi
exit $failed
