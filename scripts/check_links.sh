#!/usr/bin/env bash
# check_links.sh -- every relative link in an .md file leads to a file or folder of this tree. Prints those that do not, one
# line each.
set -u
cd "$(dirname "$0")/.." || exit 71
bad=0
while IFS=: read -r page line link; do
    link=${link#*](}
    link=${link%)}
    link=${link%%#*} # a place within a page
    [[ $link == *://* || -z $link ]] && continue
    [ -e "$(dirname "$page")/$link" ] || { echo "$page:$line: there is no $link"; bad=1; }
done < <(find . -path ./build -prune -o -path ./out -prune -o -name '*.md' -print | sed 's|^\./||' | sort | xargs grep -noE '\]\([^) ]+\)' /dev/null)
exit $bad
