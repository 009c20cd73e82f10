"""sass.py -- reads the disassembly of CUDA kernels: instructions by class, loops, and the hot path.

The hot path is the sequence of instructions that a warp executes for nearly all of the data. Loops are found in the graph of
basic blocks, because the compiler rotates loops and moves blocks, so that intervals of addresses say little."""
import collections
import re
import subprocess

INSTRUCTION = re.compile(r'^\s+/\*[0-9a-f]{4,}\*/')
TEXT = re.compile(r'^\s+/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s+/\* 0x([0-9a-f]{16}) \*/')
SECOND_WORD = re.compile(r'^\s+/\* 0x([0-9a-f]{16}) \*/')
PREDICATE = re.compile(r'^@!?U?P\w+\s+')
# A branch that falls through for some warps has a predicate in front or among its operands.
PREDICATE_OPERAND = re.compile(r'^BRA\S*\s+!?U?P\d')

Instruction = collections.namedtuple('Instruction', 'address opcode text stall predicated')

CLASSES = {
    'mma': 'HMMA HGMMA IMMA QGMMA',
    'fp32': 'FADD FMUL FFMA',
    'half2': 'HADD2 HMUL2 HFMA2 HMNMX2 HSETP2 HSET2',
    'fp64': 'DADD DMUL DFMA DSETP DMNMX',
    'mufu': 'MUFU',
    'convert': 'F2F F2I I2F FRND',
    'shuffle': 'SHFL VOTE REDUX MATCH',
    'branch': 'BRA EXIT BSSY BSYNC CALL RET BRX JMP WARPSYNC BREAK YIELD NANOSLEEP BMOV ENDCOLLECTIVE',
    'sync': 'BAR DEPBAR LDGDEPBAR MEMBAR ERRBAR SYNCS WARPGROUP FENCE CCTL ARRIVES',
    'copy': 'LDGSTS',
    'matrix': 'LDSM',
    'shared': 'LDS STS STSM',
    'global': 'LDG STG LD ST RED ATOM ATOMG',
    'local': 'LDL STL',
    'constant': 'LDC ULDC LDCU',
    'move': 'MOV S2R CS2R S2UR P2R R2P R2UR',
    'nop': 'NOP',
}
CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes.split()}


def class_of(instruction):
    """Returns the class of an instruction. `dummy` loads take a slot and do no work. What is in no list is an operation on
    integers or predicates, on vector registers (int) or on uniform ones (uniform)."""
    if instruction.predicated == '@!PT':
        return 'dummy'
    base = instruction.opcode.split('.')[0]
    return CLASS_OF.get(base) or ('uniform' if base.startswith('U') else 'int')


def width_of(instruction):
    """Returns how many bytes a lane moves with a load, store or copy."""
    opcode = instruction.opcode
    for bits in 128, 64:
        if '.%d' % bits in opcode:
            return bits // 8
    return 16 if opcode.startswith(('LDSM', 'LDGSTS')) else 2 if '16' in opcode else 1 if '8' in opcode else 4


def group_product(instruction):
    """Returns how many columns the result of a product by a warpgroup has; None for other instructions."""
    found = re.match(r'HGMMA\.64x(\d+)x', instruction.opcode)
    return int(found.group(1)) if found else None


def left_in_registers(product):
    """Returns the first register of the left operand of a product by a warpgroup, if it is in registers; else None."""
    found = re.match(r'\S+\s+R\d+, R(\d+),', product.text)
    return int(found.group(1)) if found else None


def registers_of(instruction):
    """Returns how many registers a warp must have for the highest one that an instruction names. Wide operands end a few registers
    after the one that is named: products by warpgroups take as many as their shape says, loads and stores as many as their width."""
    named = [int(number) for number in re.findall(r'\bR(\d+)\b', instruction.text)]
    if not named:
        return 0
    opcode, wide = instruction.opcode, 1
    columns, left = group_product(instruction), left_in_registers(instruction)
    if columns:
        return max(named[0] + columns // 2, left + 4 if left is not None else 0)
    if opcode.startswith('HMMA'):
        wide = 4
    elif class_of(instruction) in ('global', 'shared', 'matrix', 'local') or opcode.startswith('LDC'):
        wide = 4 if '.128' in opcode or '.M88.4' in opcode else 2 if '.64' in opcode or '.M88.2' in opcode else 1
    elif '.WIDE' in opcode:
        wide = 2
    return max(named) + wide


def short_name(name):
    """Returns a kernel's name as reports show it: "copy_kernel<bf16,float,4>"."""
    name = name.replace('(ActivationKind)', '').replace('__nv_bfloat16', 'bf16').replace('__half', 'f16')
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == '<') - (letter == '>')
        if letter == '(' and depth == 0:
            name = name[:i]
            break
    return re.sub(r'^void ', '', name).replace(' ', '')


def demangle(names):
    """Returns a dictionary from mangled names to short names."""
    out = subprocess.run(['c++filt'], input='\n'.join(names), capture_output=True, text=True, check=True).stdout
    return {mangled: short_name(full) for mangled, full in zip(names, out.split('\n'))}


def parse(lines):
    """Returns {mangled name: [Instruction]} of the output of `cuobjdump -sass`."""
    kernels, code, pending = {}, None, None
    for line in lines:
        if pending:
            word = SECOND_WORD.match(line)
            address, text = pending
            pending = None
            predicate = PREDICATE.match(text)
            bare = text[predicate.end():] if predicate else text
            # Bits 41 to 44 of the second word tell for how many clocks the warp then waits.
            stall = max(1, int(word.group(1), 16) >> 41 & 15) if word else 1
            code.append(Instruction(address, bare.split(None, 1)[0], bare, stall, predicate.group().strip() if predicate else ''))
        elif INSTRUCTION.match(line) and code is not None:
            found = TEXT.match(line)
            pending = found and (int(found.group(1), 16), found.group(2))
        elif 'Function : ' in line:
            code = kernels[line.split('Function : ')[1].strip()] = []
    for code in kernels.values():  # padding, and a branch to itself before it
        while code and code[-1].opcode == 'NOP':
            code.pop()
        if code and target_of(code[-1]) == code[-1].address:
            code.pop()
    return kernels


def disassemble(cuobjdump, path, arch):
    """Returns parse() of the code for `arch` in an object file; empty if it has none."""
    done = subprocess.run([cuobjdump, '-sass', '-arch', arch, path], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError('cuobjdump cannot read %s: %s' % (path, done.stderr.strip()))
    return parse(done.stdout.split('\n'))


def is_branch(instruction):
    """Returns whether an instruction is a branch. On sm_80, warps leave some loops by a call with a predicate that never returns;
    calls of functions have none."""
    return instruction.opcode.startswith('BRA') or (instruction.opcode.startswith('CALL.REL') and bool(instruction.predicated))


def target_of(instruction):
    """Returns the address that a branch goes to, or None."""
    if not is_branch(instruction):
        return None
    found = re.search(r'(0x[0-9a-f]+)\s*$', instruction.text)
    return int(found.group(1), 16) if found else None


class Graph:
    """The basic blocks of a kernel, their order and its natural loops. blocks: lists of instructions; follow: the successors of
    each; loops: {first block: set of blocks}."""

    def __init__(self, code):
        place = {instruction.address: i for i, instruction in enumerate(code)}
        starts = {0}
        for i, instruction in enumerate(code):
            if is_branch(instruction) or instruction.opcode.startswith(('EXIT', 'RET', 'BRX', 'JMP')):
                starts.add(i + 1)
                starts.add(place.get(target_of(instruction), 0))
        starts = sorted(s for s in starts if s < len(code))
        self.blocks = [code[a:b] for a, b in zip(starts, starts[1:] + [len(code)])]
        number = {block[0].address: k for k, block in enumerate(self.blocks)}
        self.follow = [self.successors(k, number) for k in range(len(self.blocks))]
        self.order = self.reverse_postorder()
        self.loops = self.natural_loops()

    def successors(self, k, number):
        last, below = self.blocks[k][-1], [k + 1] if k + 1 < len(self.blocks) else []
        if is_branch(last):
            # Warps take the edge of BRA.DIV only while they diverge.
            diverging = '.DIV' in last.opcode
            taken = [] if diverging else [number[t] for t in [target_of(last)] if t in number]
            falls = diverging or last.predicated or PREDICATE_OPERAND.match(last.text)
            return taken + (below if falls else [])
        if last.opcode.startswith(('EXIT', 'RET', 'BRX', 'JMP')):
            return below if last.predicated else []
        return below

    def reverse_postorder(self):
        order, seen, stack = [], {0}, [(0, iter(self.follow[0]))]
        while stack:
            block, rest = stack[-1]
            for after in rest:
                if after not in seen:
                    seen.add(after)
                    stack.append((after, iter(self.follow[after])))
                    break
            else:
                order.append(block)
                stack.pop()
        return order[::-1]

    def natural_loops(self):
        before = collections.defaultdict(list)
        for block in self.order:
            for after in self.follow[block]:
                before[after].append(block)
        dominators = {block: set(self.order) for block in self.order}
        dominators[0] = {0}
        changing = True
        while changing:
            changing = False
            for block in self.order[1:]:
                now = set.intersection(*(dominators[b] for b in before[block])) | {block}
                changing = changing or now != dominators[block]
                dominators[block] = now
        loops = {}
        for block in self.order:
            for head in self.follow[block]:
                if head in dominators[block]:
                    body, stack = loops.setdefault(head, {head}), [block]
                    while stack:
                        b = stack.pop()
                        if b not in body:
                            body.add(b)
                            stack.extend(before[b])
        return loops

    def inner_of(self, body, head):
        """Returns the outermost loops inside a loop `body` with that head, in the order of their execution. For the whole
        kernel, body is all blocks and head None."""
        inside = [h for h in self.order if h in self.loops and h != head and h in body]
        return [h for h in inside if not any(self.loops[h] < self.loops[o] for o in inside)]

    def path(self, body, head, weight):
        """Returns the blocks of the heaviest path through a loop, from its head to a jump back to it, or, with head None,
        through the kernel. Loops inside are passed once."""
        best = {}
        for k in reversed([k for k in self.order if k in body]):
            ends = head in self.follow[k] if head is not None else not self.follow[k]
            ways = [best[x] for x in self.follow[k] if x in best and x != head and not (x in self.loops and k in self.loops[x])]
            ways += [(0, [])] if ends else []
            if ways:
                score, rest = max(ways, key=lambda way: way[0])
                best[k] = score + sum(weight(i) for i in self.blocks[k]), [k] + rest
        return best[0 if head is None else head][1]


def is_heavy(instruction):
    """Returns whether an instruction belongs to the work that a kernel is for: products, and wide moves of data."""
    kind = class_of(instruction)
    return kind in ('mma', 'copy', 'matrix') or kind in ('global', 'shared') and width_of(instruction) == 16


class HotPath:
    """instructions: what a warp executes per unit of work, each as often as it executes it. counts: number by class."""

    def __init__(self, instructions):
        self.instructions = instructions
        self.counts = collections.Counter(class_of(i) for i in instructions)
        self.slots = len(instructions)
        self.stalls = sum(i.stall for i in instructions)


def hot_path(code, loops, trips, also=()):
    """Returns the HotPath of a kernel: of its heaviest loops, as many as `loops` has numbers, or, if it has none, of the whole
    kernel. loops: how often each of them runs; trips: how often each loop inside them runs; both in the order of execution. A
    loop inside counts with all of its instructions, because copies branch only at borders; if its number is a pair, the loops
    inside it are left out: (how often it runs, 0). also: classes that count as work
    besides is_heavy. Raises ValueError if the number of loops inside is not that of trips."""
    graph = Graph(code)
    everything, left, found = set(graph.order), list(trips), []

    def weight(i):
        return 999 if is_heavy(i) or class_of(i) in also else -1

    def path_of(body, head):
        path, instructions = graph.path(body, head, weight), []
        inner = [h for h in graph.inner_of(body, head) if h in path]
        for k in path:
            if not any(k in graph.loops[h] for h in inner):
                instructions += graph.blocks[k]
        for h in inner:
            times, kept = left.pop(0) if left else 0, set(graph.loops[h])
            if isinstance(times, tuple):
                times, kept = times[0], kept.difference(*(graph.loops[k] for k in graph.inner_of(graph.loops[h], h)))
            loop = [i for k in sorted(kept) for i in graph.blocks[k]]
            found.append(len(loop))
            instructions += loop * times
        return instructions

    def work_of(head):
        body = [i for k in graph.loops[head] for i in graph.blocks[k]]
        return sum(map(is_heavy, body)), len(body)

    if loops:
        heads = sorted(graph.inner_of(everything, None), key=work_of)[-len(loops):]
        instructions = []
        for head, times in zip(sorted(heads, key=graph.order.index), loops):
            instructions += path_of(graph.loops[head], head) * times
    else:
        instructions = path_of(everything, None)
    if len(found) != len(trips):
        raise ValueError('its hot path has %d loops (of %s instructions), but the table gives %d counts of how often they run' %
                         (len(found), ', '.join(map(str, found)) or 'no', len(trips)))
    return HotPath(instructions)
