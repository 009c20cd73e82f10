#!/usr/bin/env bash
# links.sh -- tests that scripts/check_links.sh reports each kind of broken link, planted in a small tree, and no other
# link.
. "$(dirname "$0")/lib.sh"

mkdir -p scripts a/b
# shellcheck disable=SC2154 # lib.sh sets it
cp "$here/../../scripts/check_links.sh" scripts/
printf 'See [a](a/README.md), [b](a/b), [there](https://example.org/x.md) and [here](#part).\n' >README.md
printf '[up](../README.md#part), [file](b/c.h) and [none]\n' >a/README.md
: >a/b/c.h
expect_code "links: valid links are accepted" 0 scripts/check_links.sh
check "links: valid links cause no message" test ! -s output

# refused NAME PAGE TEXT WORDS: with this text in the page, expects that the check ends with 1 and prints WORDS
refused() {
    cp "$2" kept
    printf '%s\n' "$3" >>"$2"
    expect_code "links: $1" 1 scripts/check_links.sh
    check "links: $1 with its file and line" grep -qxF -- "$4" output
    mv kept "$2"
}
refused "a link to a missing file is refused" README.md "[c](c.md)" "README.md:2: there is no c.md"
refused "a link that is valid from the root, but not from the page is refused" a/README.md "[b](a/b/c.h)" \
    "a/README.md:2: there is no a/b/c.h"
refused "an invalid second link of a line is refused" README.md "[a](a/b) [c](a/c)" "README.md:2: there is no a/c"
refused "a link to a missing place in a page is refused" README.md "[c](a/c.md#part)" "README.md:2: there is no a/c.md"
finish
