#!/bin/sh
# clang-tidy over the library and the command, with .clang-tidy at the root; two files at a time.
# Usage: clang_tidy.sh [ROOT]. Prints each finding; exits 1 if there is one, 77 (skipped) without clang-tidy.
cd "${1:-.}" || exit 2
if ! command -v clang-tidy >/dev/null; then
  echo "SKIPPED: there is no clang-tidy on PATH; nothing was checked" >&2
  exit 77
fi
clang-tidy --version | grep -i version

# Without NDEBUG: the analyser learns from assertions. A file's findings are printed in one piece, without
# clang-tidy's counts of what it suppressed in system headers.
ROTA_TIDY_FLAGS="-std=gnu11 -I. -Iinclude $(pkg-config --cflags lua5.4 libxxhash jansson 2>/dev/null || echo -I/usr/include/lua5.4)"
export ROTA_TIDY_FLAGS
files=$(find generator runtime command -name '*.c' | sort)
[ -n "$files" ] || { echo "no files under $(pwd)"; exit 2; }
echo "$files" | xargs -P2 -n1 sh -c '
  findings=$(clang-tidy --quiet "$0" -- $ROTA_TIDY_FLAGS 2>&1) && exit 0
  echo "$findings" | grep -v -E "^[0-9]+ (warning|error)s?( and [0-9]+ errors?)? (generated|treated)"
  exit 1' || { echo "clang-tidy has findings"; exit 1; }
echo "$(echo "$files" | wc -l) files are clean"
