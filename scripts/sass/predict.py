"""predict.py -- predicts times of kernels from their hot paths, with the model of machine.txt."""
import collections
import os

import sass

GPUS = ('H100', 'H200')
ARCHS = ('sm_80', 'sm_90a', 'sm_100')
# The unit that executes a class of instructions, if its lanes are in machine.txt.
LANES = {'fp32': 'fp32', 'half2': 'half2', 'int': 'int', 'move': 'int', 'mufu': 'mufu', 'convert': 'convert', 'shuffle': 'shuffle',
         'fp64': 'fp64'}


def read_machine(path=os.path.join(os.path.dirname(__file__), 'machine.txt')):
    """Returns ({GPU: {name: value}}, {architecture: {name: value}})."""
    gpus, archs, columns = collections.defaultdict(dict), collections.defaultdict(dict), ()
    for line in open(path, encoding='utf-8'):
        words = line.lstrip('# ').split()
        if words[:1] == ['name']:
            columns = words[1:4]
        elif not line.startswith(('#', ' ')) and len(words) > 2:
            for column, word in zip(columns, words[1:]):
                if column in GPUS or column in ARCHS:
                    (gpus if column in GPUS else archs)[column][words[0]] = float(word)
    return gpus, archs


MACHINE, LIMITS = read_machine()


def blocks_resident(arch, registers, threads, shared):
    """Returns how many blocks fit on a multiprocessor."""
    limit = LIMITS[arch]
    warps = (threads + 31) // 32
    a_warp = (32 * registers + 255) // 256 * 256
    return int(min(limit['registers'] // a_warp // warps, limit['threads'] // (32 * warps), limit['blocks'],
                   limit['shared_memory'] // (shared + 1024)))


def clocks_of(path, gpu):
    """Returns {unit: clocks of a multiprocessor} for one hot path of a warp. Every lane counts as if it accessed other bytes than
    the others: loads from shared memory in which lanes read the same 8 or 16 bytes take 2 or 4 times less than is counted (of 4
    bytes as much), and bank conflicts more. Global loads count as loads from L2, though L1 may serve some."""
    machine, clocks = MACHINE[gpu], collections.Counter()
    clocks['issue'] = path.slots / machine['issue']
    for i in path.instructions:
        kind, size = sass.class_of(i), 32 * sass.width_of(i)
        if kind in LANES:
            clocks[LANES[kind]] += 32 / machine['lanes_' + LANES[kind]]
        if kind in ('shared', 'matrix', 'copy'):
            clocks['shared memory'] += size / machine['shared_bytes']
        if kind in ('global', 'copy'):
            clocks['L2'] += size / machine['l2_bytes']
        if i.opcode.startswith('HMMA'):
            multiplies = 2048 if '16816' in i.opcode else 1024
            clocks['tensor cores'] += multiplies / machine['tensor_fma'] / machine['mma_sync_share']
        width = sass.group_product(i)
        if width:
            # A quarter of what the four warps of the warpgroup take together.
            clocks['tensor cores'] += width / 2 / 4 / machine['wgmma_share']
            clocks['shared memory'] += (width + (0 if sass.left_in_registers(i) else 64)) / 4 / 4
    return clocks


Prediction = collections.namedtuple('Prediction', 'seconds bound floor')


def predict(path, gpu, units, moved, flops, warps):
    """Returns the predicted time of a launch with `units` hot paths that moves `moved` bytes, what bounds it, and its floor: the
    time of the bytes at full bandwidth, or of `flops` operations at the peak. warps: resident on a multiprocessor."""
    machine = MACHINE[gpu]
    each = units / machine['multiprocessors'] / (machine['clock_ghz'] * 1e9)
    times = {unit: each * clocks for unit, clocks in clocks_of(path, gpu).items()}
    latency = each * path.stalls / warps  # if no warp ever waits for memory
    if flops:
        by_groups = any(sass.group_product(i) for i in path.instructions)
        share = machine['attention_wgmma_share' if by_groups else 'attention_share']
        times = {unit: time / share for unit, time in times.items()}
        floor = flops / (machine['peak_tflops'] * 1e12)
    else:
        times['issue'] /= machine['issue_share']
        floor = times['memory'] = moved / (machine['bandwidth_tb'] * 1e12)
    times['latency'] = latency
    bound = max(times, key=times.get)
    return Prediction(times[bound], bound, floor)
