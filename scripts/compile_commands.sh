#!/usr/bin/env bash
# compile_commands.sh -- converts the output of `make -n` (on stdin) to compile_commands.json (on stdout). If a file is compiled
# more than once (as the kernels are, once per CPU level), the first command is used.
set -u
awk -v folder="$PWD" '
    function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
    / -c / && / -o / && $NF ~ /\.c$/ && !seen[$NF]++ {
        printf "%s\n  {\"directory\": %s, \"file\": %s, \"command\": %s}", n++ ? "," : "[", quoted(folder), quoted($NF), quoted($0)
    }
    END { print n ? "\n]" : "[]" }'
