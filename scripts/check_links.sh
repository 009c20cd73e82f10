#!/usr/bin/env bash
# check_links.sh -- checks that every relative link in an .md file names an existing file or folder. Prints each broken link on
# a line.
set -u
cd "$(dirname "$0")/.." || exit 71
bad=0
while IFS=: read -r page line link; do
    link=${link#*](}
    link=${link%)}
    link=${link%%#*} # remove the anchor
    [[ $link == *://* || -z $link ]] && continue
    [ -e "$(dirname "$page")/$link" ] || { echo "$page:$line: there is no $link"; bad=1; }
done < <(find . -path ./build -prune -o -path ./out -prune -o -name '*.md' -print | sed 's|^\./||' | sort | xargs grep -noE '\]\([^) ]+\)' /dev/null)
exit $bad
