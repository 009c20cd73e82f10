#!/usr/bin/env bash
# compile_commands.sh -- turns what `make -n` prints (on stdin) into compile_commands.json (on stdout). Of a file that is
# compiled more than once (the kernels, per CPU level) the first command counts.
set -u
awk -v folder="$PWD" '
    function quoted(s) { gsub(/\\/, "\\\\", s); gsub(/"/, "\\\"", s); return "\"" s "\"" }
    / -c / && / -o / && $NF ~ /\.c$/ && !seen[$NF]++ {
        printf "%s\n  {\"directory\": %s, \"file\": %s, \"command\": %s}", n++ ? "," : "[", quoted(folder), quoted($NF), quoted($0)
    }
    END { print n ? "\n]" : "[]" }'
