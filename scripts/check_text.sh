#!/usr/bin/env bash
# check_text.sh -- checks rules that no compiler checks: no conditional compilation except include guards and `#ifdef
# __cplusplus` in headers; no words that promise later work; no spaces at the end of a line; at most 400 lines in a file and 60
# in a function. Tests that are longer only get a remark.
set -u
cd "$(dirname "$0")/.." || exit 71
find . -path ./build -prune -o -path ./out -prune -o \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) -print | sed 's|^\./||' | sort | xargs awk '
    function say(text) {
        if (FILENAME ~ /^tests\//) { printf "%s:%d: remark: %s\n", FILENAME, line, text; return }
        printf "%s:%d: %s\n", FILENAME, line, text
        bad = 1
    }
    function guard(   g) {
        g = toupper(FILENAME)
        sub(/^TESTS\/EMU\/INCLUDE\/MODEL/, "MODEL", g) # this header replaces the one in model/ and has its guard
        sub(/^TESTS\/EMU\/INCLUDE\//, "TESTS/EMU/", g)
        gsub(/[^A-Z0-9]/, "_", g)
        return g
    }
    function end_of_file() { if (lines > 400) { line = lines; say(lines " lines; 400 are the limit") } }
    FNR == 1 { if (NR > 1) { saved = FILENAME; FILENAME = previous; end_of_file(); FILENAME = saved } previous = FILENAME; open_at = 0 }
    { lines = FNR; line = FNR }
    /^[ \t]*#[ \t]*ifdef __cplusplus$/ && FILENAME ~ /\.h$/ { by_language = 1; next }
    /^[ \t]*#[ \t]*endif/ { by_language = 0 }
    /^[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else)/ && !(FILENAME ~ /\.(h|cuh)$/ && $1 == "#ifndef" && $2 == guard()) && !by_language {
        printf "%s:%d: conditional compilation (the guard of a header would be %s)\n", FILENAME, FNR, guard()
        bad = 1
    }
    /(^|[^A-Z_])(T[O]DO|F[I]XME|X[X]X|H[A]CK)([^A-Z_]|$)/ { printf "%s:%d: a word that promises work for later\n", FILENAME, FNR; bad = 1 }
    /[ \t]+$/ { printf "%s:%d: blanks at the end of the line\n", FILENAME, FNR; bad = 1 }
    /^{/ { open_at = FNR }
    /^}/ && open_at { if (FNR - open_at - 1 > 60) { line = open_at; say("a function of " FNR - open_at - 1 " lines; 60 are the limit") } open_at = 0 }
    END { end_of_file(); exit bad }'
