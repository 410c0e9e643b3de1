#!/bin/sh
# Tests of the Python package. Usage: python.sh library|torch ROOT
# library: the ctypes layer, with python3's standard library alone. torch: everything, by pytest.
# Exits 77 (skipped), loudly, where what it needs is missing. ROTA_PYTHON picks another python3.
part=$1
root=$2
python=${ROTA_PYTHON:-python3}
skip() {
  echo "SKIPPED: $part tests of the Python package: $*"
  exit 77
}
command -v "$python" >/dev/null || skip "no $python here"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' || skip "$python is older than 3.10"
cd "$root/python" || exit 2
export PYTHONPATH="$root/python" PYTHONDONTWRITEBYTECODE=1
case $part in
library) exec "$python" -m unittest discover -s tests -p test_library.py ;;
torch)
  for module in pytest torch; do
    "$python" -c "import $module" 2>/dev/null || skip "$python has no $module (pip install $module)"
  done
  exec "$python" -m pytest -q -p no:cacheprovider --show-capture=no tests
  ;;
*) exit 2 ;;
esac
