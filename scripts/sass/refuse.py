"""refuse.py -- finds faults in the machine code of kernels, and compares them with those that are known (known.txt)."""
import itertools
import os
import re

import sass

ELEMENTWISE = ('elementwise', 'memory')  # sources whose kernels only read, compute and write elements
WHOLE = ELEMENTWISE + ('embedding', 'embedding_backward')  # sources whose packed kernels write nothing but whole packs
# A fault: what is wrong, the source without .cu, the kernel's short name, and a description.
SPLIT, CALL, WIDE, REGISTERS, ALONE = 'split store', 'call', 'wide multiply', 'registers', 'exponentials alone'


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


def roles_of(code):
    """Returns [(registers that setmaxnreg gives a warp, registers that the instructions after it use)], in the order of the code.
    ptxas reports only how many registers a thread starts with. What follows one setmaxnreg ends where another begins."""
    def amount(instruction):
        """Returns the number of registers of a USETMAXREG, or None."""
        found = re.search(r'0x([0-9a-f]+)', instruction.text) if instruction.opcode.startswith('USETMAXREG') else None
        return int(found.group(1), 16) if found else None

    graph, roles = sass.Graph(code), []
    for k in sorted(graph.order):
        for at, instruction in enumerate(graph.blocks[k]):
            if amount(instruction) is None:
                continue
            used, seen, stack = 0, set(), [(k, at + 1)]
            while stack:
                block, start = stack.pop()
                rest = graph.blocks[block][start:]
                end = next((i for i, other in enumerate(rest) if amount(other) is not None), None)
                used = max([used] + [sass.registers_of(i) for i in rest[:end]])
                for after in graph.follow[block] if end is None else []:
                    if after not in seen:
                        seen.add(after)
                        stack.append((after, 0))
            roles.append((amount(instruction), used))
    return roles


def exponentials(code):
    """Returns (how many exponentials the loops with products by warpgroups have, how many of these run while products are under
    way). ptxas moves the wait for products up to the start of its basic block; then nothing runs beside them."""
    graph, all_of_them, beside = sass.Graph(code), 0, 0
    heads = [h for h, body in graph.loops.items() if any(i.opcode.startswith('HGMMA') for k in body for i in graph.blocks[k])]
    for head in heads:
        if any(graph.loops[other] < graph.loops[head] for other in heads):
            continue
        pending = False
        for instruction in (i for k in graph.order if k in graph.loops[head] for i in graph.blocks[k]):
            if instruction.opcode.startswith('HGMMA'):
                pending = True
            if instruction.opcode.startswith('WARPGROUP.DEPBAR') and re.search(r'gsb0, 0x0\b', instruction.text):
                pending = False
            if instruction.opcode.startswith('MUFU.EX2'):
                all_of_them += 1
                beside += pending
    return all_of_them, beside


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
    for given, used in roles_of(code) if 'USETMAXREG' in opcodes else []:
        if used > given:
            faults.append((REGISTERS, '%d are used after setmaxnreg has given %d' % (used, given)))
    count, beside = exponentials(code) if 'HGMMA' in opcodes else (0, 0)
    if 2 * beside < count:
        faults.append((ALONE, 'of %d exponentials beside products by warpgroups only %d run while these are under way' % (count, beside)))
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
