# Sourced by the tests of the command, with its arguments ROTA SOURCE_DIRECTORY: a scratch folder with a cache of its own,
# and checks that count.
rota=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
source=$(cd "$2" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export ROTA_CACHE_DIR="$scratch/cache"
passed=0
failed=0
check() { # check NAME CONDITION...
  name=$1
  shift
  if "$@" >/dev/null; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $name"; fi
}
status() { # status EXPECTED COMMAND...
  expected=$1
  shift
  "$@" >"$scratch/out" 2>"$scratch/err"
  got=$?
  [ $got -eq "$expected" ] || { echo "exit status $got, not $expected: $*"; cat "$scratch/err"; return 1; }
}
err_has() { grep -q -- "$1" "$scratch/err"; }
out_has() { grep -q -- "$1" "$scratch/out"; }
