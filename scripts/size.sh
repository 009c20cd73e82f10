#!/usr/bin/env bash
# size.sh -- `make size`: prints for each folder its number of lines, and of lines that are neither blank nor comment, sorted by
# layer (see check_layers.sh). Then lists the files of more than 400 lines and the functions of more than 60.
set -u
cd "$(dirname "$0")/.." || exit 71
{
    scripts/check_layers.sh --floors | sed 's/^/floor /'
    git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc' | sed 's/^/file /'
    git ls-files '*.sh' '*.py' .ci/run | sed 's/^/script /'
} | awk '
    function room_of(file) { return sub(/\/[^\/]*$/, "", file) ? file : "train.c" }
    # The output is sorted by the result.
    function floor_of(room) { return room in floors ? floors[room] : room ~ /^tests/ ? floors["tests"] : room == "train.c" ? "7" : "-" }
    function measure(file, room,   line, n, inside, opened, start) {
        files[room]++
        while ((getline line < file) > 0) {
            n++
            lines[room]++
            if (line ~ /^{/) opened = n
            if (line ~ /^}/ && opened) {
                if (n - opened - 1 > 60) long[++longs] = sprintf("%s:%d: a function of %d lines", file, opened, n - opened - 1)
                opened = 0
            }
            start = line ~ /^[ \t]*\/\*/
            if (inside || start) { inside = line !~ /\*\//; continue }
            if (line !~ /^[ \t]*(\/\/.*)?$/) code[room]++
        }
        close(file)
        if (n > 400) long[++longs] = sprintf("%s: %d lines", file, n)
    }
    function shown(floor, name, f, l, c) { return sprintf("%-6s %-34s %4d files %6d lines %6d code\n", floor, name, f, l, c) }
    $1 == "floor" { floors[$2] = $3 }
    $1 == "file" { measure($2, room_of($2)) }
    $1 == "script" { scripts++; while ((getline line < $2) > 0) script_lines++ }
    END {
        sorted = "sort -k1,1 -k2,2"
        for (room in files) {
            printf "%s", shown(floor_of(room), room, files[room], lines[room], code[room]) | sorted
            part = room ~ /^tests/ ? "tests" : "program"
            all[part] += files[room]; all_lines[part] += lines[room]; all_code[part] += code[room]
        }
        close(sorted)
        printf "%s", shown("", "program", all["program"], all_lines["program"], all_code["program"])
        printf "%s", shown("", "tests", all["tests"], all_lines["tests"], all_code["tests"])
        printf "%-6s %-34s %4d files %6d lines\n", "", "scripts", scripts, script_lines
        for (i = 1; i <= longs; i++) print "over the limit: " long[i]
    }'
