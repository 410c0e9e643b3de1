#!/bin/sh
# Every C file is as clang-format would write it, by .clang-format at the root.
# Usage: clang_format.sh [ROOT]. Prints each difference; exits 1 if there is one, 77 (skipped) without clang-format.
cd "${1:-.}" || exit 2
if ! command -v clang-format >/dev/null; then
  echo "SKIPPED: there is no clang-format on PATH; nothing was checked" >&2
  exit 77
fi
clang-format --version
files=$(find generator runtime command tests examples include -name '*.c' -o -name '*.h' | sort)
[ -n "$files" ] || { echo "no files under $(pwd)"; exit 2; }
echo "$files" | xargs clang-format --dry-run -Werror || exit 1
echo "$(echo "$files" | wc -l) files are formatted"
