"""refuse.py -- finds faults in the machine code of kernels, and compares them with those that are known (known.txt)."""
import itertools
import os
import re

import sass

ELEMENTWISE = ('elementwise', 'memory')  # sources whose kernels only read, compute and write elements
WHOLE = ELEMENTWISE + ('embedding', 'embedding_backward')  # sources whose packed kernels write nothing but whole packs
# A fault: what is wrong, the source without .cu, the kernel's short name, and a description.
SPLIT, CALL, WIDE = 'split store', 'call', 'wide multiply'


def is_packed(name):
    """Returns whether a kernel moves packs of elements: the first number among its template arguments is their size."""
    numbers = re.findall(r'[<,](\d+)(?=[,>])', name)
    return bool(numbers) and int(numbers[0]) > 1


def split_stores(file, code):
    """Returns the numbers of narrow stores, of at most 4 bytes, and of wide ones in a kernel. The narrow stores of kernels that also
    write single numbers, beside wide stores of packs, do not count."""
    widths = [sass.width_of(i) for i in code if i.opcode.startswith('STG')]
    wide = sum(width >= 8 for width in widths)
    return (len(widths) - wide if file in WHOLE or not wide else 0), wide


def wide_in_copies(code):
    """Returns the wide multiplies and conversions in innermost loops of asynchronous copies."""
    graph, found = sass.Graph(code), set()
    for head, body in graph.loops.items():
        if any(graph.loops[other] < body for other in graph.loops):
            continue
        opcodes = [i.opcode for k in body for i in graph.blocks[k]]
        if any(o.startswith('LDGSTS') for o in opcodes):
            found.update(o for o in opcodes if o.startswith(('IMAD.WIDE', 'IMAD.HI', 'I2F', 'F2I')))
    return sorted(found)


def faults_of(file, name, code):
    """Returns [(what is wrong, description)] for one kernel."""
    faults = []
    opcodes = {i.opcode.split('.')[0] for i in code}
    narrow, wide_stores = split_stores(file, code)
    if is_packed(name) and narrow >= 4:
        faults.append((SPLIT, 'packs are stored in parts, by %d stores of at most 4 bytes and %d of more' % (narrow, wide_stores)))
    if file in ELEMENTWISE and 'CALL' in opcodes:
        faults.append((CALL, 'an elementwise kernel calls a function, such as that of an exact division'))
    wide = wide_in_copies(code) if 'LDGSTS' in opcodes else []
    if wide:
        faults.append((WIDE, 'an innermost loop of copies has ' + ', '.join(wide)))
    return faults


def expand(pattern):
    """Returns the names that a pattern with alternatives in braces stands for: "a<{b,c},{1,2}>" is four names."""
    parts = re.split(r'\{([^}]*)\}', pattern)
    choices = [part.split(',') if i % 2 else [part] for i, part in enumerate(parts)]
    return [''.join(words) for words in itertools.product(*choices)]


def read_known(path=os.path.join(os.path.dirname(__file__), 'known.txt')):
    """Returns {(what is wrong, source, kernel): line of known.txt}."""
    known = {}
    for number, line in enumerate(open(path, encoding='utf-8'), 1):
        words = [word.strip() for word in line.split('|')]
        if len(words) == 4 and not line.startswith('#'):
            known.update({(words[0], words[1], name): number for name in expand(words[2])})
    return known


def compare(found, files):
    """Returns the complaints about the faults {(what is wrong, source, kernel): description} of these sources: faults that are
    not known, and known ones that are gone."""
    known = {fault: line for fault, line in read_known().items() if fault[1] in files}
    complaints = ['%s.cu: %s: %s: %s' % (file, name, what, found[what, file, name])
                  for what, file, name in sorted(found) if (what, file, name) not in known]
    gone = {}
    for fault, line in sorted(known.items()):
        if fault not in found:
            gone.setdefault((line, fault[0], fault[1]), []).append(fault[2])
    return complaints + ['scripts/sass/known.txt:%d: %s.cu: no %s any more in %s; remove this from the line' %
                         (line, file, what, ', '.join(names)) for (line, what, file), names in sorted(gone.items())]
