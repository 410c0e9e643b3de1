#!/bin/sh
# The house rules that a machine can check: sizes, line widths, layers, and who may include what.
# Usage: house_rules.sh [ROOT]. Prints each breach; exits 1 if there is one.
root=${1:-.}
cd "$root" || exit 2
breaches=0
breach() { echo "house rule: $*"; breaches=$((breaches + 1)); }
files() { find generator runtime command lua templates include tests examples python bench -type f 2>/dev/null |
  grep -E "$1" | grep -v -E 'tests/golden/' | sort; }

# Sizes: files under 600 lines (templates under 800), lines under 100 columns (clang-format's limit is 100).
for file in $(files '\.(c|h|lua|py|cuh)$'); do
  limit=600
  case $file in templates/*) limit=800 ;; esac
  lines=$(wc -l <"$file")
  [ "$lines" -lt $limit ] || breach "$file has $lines lines (under $limit)"
  wide=$(awk 'length($0) > 100 { print FNR; exit }' "$file")
  [ -z "$wide" ] || breach "$file:$wide is wider than 100 columns"
done

# Functions under 60 lines: from a line that opens one at the left margin to its closing brace.
for file in $(files '^(generator|runtime|command)/.*\.c$'); do
  awk -v file="$file" '
    /^[A-Za-z_].*[^;]$/ && !/^(typedef|struct|enum|union|extern|static const|const)/ { if (!open) { head = FNR; name = $0 } }
    /\{$/ && !open && head { open = FNR }
    /^}/ { if (open && FNR - head >= 60) { print "house rule: " file ":" head " has a function of " FNR - head + 1 " lines (under 60)"; bad = 1 } open = 0; head = 0 }
    END { exit bad }' "$file" || breaches=$((breaches + 1))
done

# Each source file opens with a comment that says what it is.
for file in $(files '\.(c|h|cuh)$'); do
  head -n 1 "$file" | grep -q -E '^(/\*|//)' || breach "$file does not open with a comment"
done

# Layers: the level is in the header's first line; a file includes only lower levels of its own folder, or files of its own
# module (the name up to the first underscore).
module_of() { basename "$1" | sed 's/[._].*//'; }
level_of() { sed -n '1,3s/.*Level \([0-9]*\)\..*/\1/p' "$1" | head -n 1; }
for folder in generator runtime; do
  for file in $(files "^$folder/.*\.[ch]$"); do
    own="$file"
    case $file in *.c) own="${file%.c}.h" ;; esac
    [ -f "$own" ] || own=""
    level=""
    [ -n "$own" ] && level=$(level_of "$own")
    # A .c file without a header of its own states its level itself.
    [ -n "$level" ] || level=$(level_of "$file")
    if [ -z "$level" ]; then
      breach "$file states no level"
      continue
    fi
    for other in $(sed -n "s/^#include \"\($folder\/[a-z0-9_]*\.h\)\"/\1/p" "$file"); do
      [ "$(module_of "$other")" = "$(module_of "$file")" ] && continue
      [ -f "$other" ] || continue
      other_level=$(level_of "$other")
      [ -n "$other_level" ] && [ "$other_level" -lt "$level" ] ||
        breach "$file (level $level) includes $other (level ${other_level:-none})"
    done
  done
done

# Doors: Lua behind script.c, the environment behind environment.c, no CUDA header anywhere, generator knows no runtime.
for file in $(files '^(generator|runtime|command|examples)/.*\.[ch]$'); do
  case $file in generator/script.c) ;; *)
    grep -n -E '#include [<"](lua|lauxlib|lualib)' "$file" && breach "$file includes Lua" ;; esac
  case $file in runtime/environment.c) ;; *)
    grep -n -E '\bgetenv\(' "$file" && breach "$file reads the environment" ;; esac
  grep -n -E '#include [<"](cuda|nvrtc)' "$file" && breach "$file includes a CUDA header"
done
for file in $(files '^generator/'); do
  grep -n '#include "runtime/' "$file" && breach "$file looks back at the runtime"
done
for file in $(files '^templates/.*\.cuh$'); do
  grep -n -E '#include <' "$file" && breach "$file includes a system header"
  case $file in templates/lib/*) ;; *)
    grep -n -E '\basm\b' "$file" && breach "$file holds inline PTX outside templates/lib" ;; esac
done

[ $breaches -eq 0 ] || { echo "$breaches breaches"; exit 1; }
echo "house rules hold"
