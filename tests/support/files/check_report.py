"""check_report.py REPORT.html RUNS: checks that the page of `./train report` for so many runs is well-formed HTML that loads
nothing, that its images are well-formed XML, and that every curve lies within its image. Prints the number of plots."""
import html.parser
import re
import sys
import xml.etree.ElementTree

VOID = {"meta", "link", "br"}


class Page(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.seen, self.names = [], [], []

    def handle_starttag(self, tag, attributes):
        self.seen.append(tag)
        for name, value in attributes:
            assert not name.startswith("on") and name != "src", f"<{tag} {name}>"
            assert name != "href" or value == "data:,", value
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.seen.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, f"</{tag}> inside {self.open}"
        self.open.pop()

    def handle_data(self, data):
        if self.open[-1:] == ["b"] and "li" in self.open:
            self.names.append(data)


text = open(sys.argv[1], encoding="utf-8").read()
page = Page()
page.feed(text)
page.close()
assert not page.open and "script" not in page.seen, page.open
assert len(page.names) == int(sys.argv[2]), page.names
assert "prefers-color-scheme:dark" in text and "http:" not in text and "https:" not in text and "url(" not in text
plots = 0
for image in re.findall(r"<svg .*?</svg>", text, re.S):
    root = xml.etree.ElementTree.fromstring(image)
    right, bottom = [float(n) for n in root.get("viewBox").split()[2:]]
    plots += right > 100
    for path in root.iter("path"):
        for x, y in re.findall(r"[ML]([-\d.]+) ([-\d.]+)", path.get("d")):
            assert 0 <= float(x) <= right and 0 <= float(y) <= bottom, path.get("d")
print(plots)
