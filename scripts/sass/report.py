"""report.py -- the part of scripts/sass_report.sh that reads logs of nvcc and machine code: checks the kernels, predicts their
times and those of training steps, and prints the tables for model/kernels/cuda/NOTES.md.

    report.py check|tables|attention FOLDER CUOBJDUMP|- ARCHITECTURE...

"attention" prints the tables of its kernels alone. FOLDER holds the objects of the kernels and their logs. "-" stands for no disassembler. Exits with 1 if it finds a fault."""
import os
import re
import sys

import kernels
import predict
import refuse
import sass

COLUMNS = ('fp32', 'half2', 'int', 'move', 'mufu', 'convert', 'shuffle', 'fp64', 'mma', 'matrix', 'copy', 'shared', 'global',
           'constant', 'branch', 'sync', 'uniform', 'dummy')


def read_logs(folder):
    """Returns {(source, kernel, architecture): (registers, spilled bytes)} from ptxas' messages."""
    found, names = {}, set()
    for log in sorted(os.listdir(folder)):
        if not log.endswith('.cu.o.log'):
            continue
        key, spilled = None, 0
        for line in open(os.path.join(folder, log), encoding='utf-8'):
            entry = re.search(r"Compiling entry function '(\S+)' for '(\S+)'", line)
            spills = re.search(r'(\d+) bytes spill stores, (\d+) bytes spill loads', line)
            used = re.search(r'Used (\d+) registers', line)
            if entry:
                key = (log[:-len('.cu.o.log')],) + entry.groups()
                names.add(entry.group(1))
            elif spills:
                spilled = int(spills.group(1)) + int(spills.group(2))
            elif used and key:
                found[key] = int(used.group(1)), spilled
    short = sass.demangle(sorted(names))
    return {(file, short[name], arch): use for (file, name, arch), use in found.items()}


def check_blocks(logs):
    """Returns complaints about kernels that are gone or of which too few blocks fit on a multiprocessor."""
    complaints = []
    for k in kernels.KERNELS:
        for arch, least in zip(predict.ARCHS, k.blocks):
            if arch not in k.archs:
                continue
            if not any(file == k.file and a == arch for file, _, a in logs):
                continue
            if (k.file, k.kernel, arch) not in logs:
                complaints.append('scripts/sass/kernels.py: %s.cu has no kernel %s for %s' % (k.file, k.kernel, arch))
                continue
            registers = logs[k.file, k.kernel, arch][0]
            blocks = predict.blocks_resident(arch, registers, k.threads, k.shared(k.model))
            if blocks < least:
                complaints.append('%s.cu: %s: %d blocks fit on a multiprocessor of %s, with %d registers and %d bytes of shared '
                                  'memory; scripts/sass/kernels.py demands %d' %
                                  (k.file, k.kernel, blocks, arch, registers, k.shared(k.model), least))
    return complaints


def read_code(folder, cuobjdump, arch, complaints):
    """Returns {kernel of kernels.KERNELS: HotPath} and {the same kernel: roles_of}, and adds complaints about the machine code of
    all kernels."""
    wanted = {(k.file, k.kernel): k for k in kernels.KERNELS}
    faults, paths, roles, files = {}, {}, {}, set()
    for name in sorted(os.listdir(folder)):
        if not name.endswith('.cu.o'):
            continue
        file = name[:-len('.cu.o')]
        code_of = sass.disassemble(cuobjdump, os.path.join(folder, name), arch)
        files.add(file)
        for mangled, short in sass.demangle(sorted(code_of)).items():
            code = code_of.get(mangled)
            if not code:
                continue
            faults.update({(what, file, short): text for what, text in refuse.faults_of(file, short, code)})
            k = wanted.get((file, short))
            if k:
                roles[k] = refuse.roles_of(code)
                try:
                    paths[k] = sass.hot_path(code, k.loops, k.trips, k.also)
                except ValueError as error:
                    complaints.append('%s.cu: %s for %s: %s; see scripts/sass/kernels.py' % (file, short, arch, error))
    complaints += ['%s (%s)' % (complaint, arch) for complaint in refuse.compare(faults, files)]
    return paths, roles


def in_all(values):
    """Returns one value for all architectures, or all of them."""
    return str(values[0]) if len(set(values)) == 1 else '/'.join(map(str, values))


def warps_resident(k, logs, arch, model):
    blocks = predict.blocks_resident(arch, logs[k.file, k.kernel, arch][0], k.threads, k.shared(model))
    return blocks * ((k.threads + 31) // 32)


def time_of(k, path, gpu, model, logs, share=1.0):
    """Returns the prediction for a launch of a kernel for sm_90a that does `share` of the work of a whole launch."""
    return predict.predict(path, gpu, k.units(model) * share, k.bytes(model) * share, k.flops(model) * share if k.flops else 0,
                           warps_resident(k, logs, 'sm_90a', model))


def microseconds(seconds):
    return '%.3g' % (1e6 * seconds) if seconds < 1e-3 else '%.0f' % (1e6 * seconds)


def row(*cells):
    print('| ' + ' | '.join(cells) + ' |')


def head(*cells):
    row(*cells)
    print('|' + '---|' * len(cells))


def kernel_tables(paths, logs, archs, rows):
    head('kernel', 'registers', 'spills', 'shared', 'blocks', 'unit of work', 'slots', 'bytes', 'H100, us', 'H200, us', 'bound by',
         'floor')
    for k in rows:
        built = [a for a in archs if a in k.archs]
        uses = [logs[k.file, k.kernel, a] for a in built]
        blocks = [predict.blocks_resident(a, u[0], k.threads, k.shared(k.model)) for a, u in zip(built, uses)]
        times = [time_of(k, paths['sm_90a'][k], gpu, k.model, logs) for gpu in predict.GPUS]
        bytes_each = '%.3g' % (k.bytes(k.model) / k.elements(k.model)) if k.elements else '-'
        row(k.name, in_all([u[0] for u in uses]), in_all([u[1] for u in uses]), '{:,}'.format(k.shared(k.model)), in_all(blocks),
            k.unit, in_all([paths[a][k].slots for a in built]), bytes_each, microseconds(times[0].seconds), microseconds(times[1].seconds),
            times[1].bound, '%.0f %%' % (100 * times[1].floor / times[1].seconds))
    print()
    head('kernel, sm_90a', *COLUMNS)
    for k in rows:
        counts = paths['sm_90a'][k].counts
        row(k.name, *(str(counts[c]) if counts[c] else '' for c in COLUMNS))


def role_table(roles, rows):
    """Prints what registers the warps of a kernel have that gives them different numbers."""
    print()
    head('kernel, sm_90a', 'registers that setmaxnreg gives', 'that the machine code uses')
    for k in rows:
        for given, used in roles.get(k, ()):
            row(k.name, str(given), str(used))


def step_rows(m, paths, logs, gpu):
    """Returns [(what, launches, seconds, seconds of its floor)] of one training step."""
    machine, found, exposed = predict.MACHINE[gpu], {}, kernels.small_launches(m)
    memory = machine['memory_gb'] * 1e9
    by_name = {k.name: k for k in kernels.KERNELS}
    for name, launches, share in kernels.step_kernels(m, memory):
        one = time_of(by_name[name], paths['sm_90a'][by_name[name]], gpu, m, logs, share)
        before = found.get(name, (0, 0.0, 0.0))
        found[name] = before[0] + launches, before[1] + launches * one.seconds, before[2] + launches * one.floor
        exposed += launches * (one.seconds < 1e-6 * machine['launch_hidden_us'])
    rate, bandwidth = machine['product_tflops'] * 1e12, machine['bandwidth_tb'] * 1e12
    blocks, (products, tiles) = kernels.block_products(m) / rate, kernels.head_products(m, memory)
    of_blocks, of_head = kernels.products(m, memory)
    rows = [(name,) + values for name, values in found.items()]
    rows.append(('matrix products of the blocks', of_blocks, blocks, blocks))
    rows.append(('matrix products of the head', of_head, products / rate, products / rate))
    rows.append(('the head: incomplete tiles', 0, (tiles - 1) * products / rate, 0.0))
    rows.append(("the head: passes over the table's gradient", 0, kernels.head_gradient_bytes(m, memory) / bandwidth, 0.0))
    written, share = kernels.gelu_epilogue_bytes(m)
    rows.append(("matrix products of the blocks: GELU's epilogue", 0, share * written / bandwidth, 0.0))
    rows.append(('gaps after short kernels', kernels.small_launches(m), 1e-6 * machine['launch_us'] * exposed, 0.0))
    return rows


def step_tables(paths, logs):
    head('step', 'GPU', 'ms', 'MFU', 'thousand tokens/s', 'matrix products, ms', 'attention', 'other kernels', 'gaps', 'launches')
    gaps = []
    for m in kernels.MODELS:
        for gpu in predict.GPUS:
            rows, memory = step_rows(m, paths, logs, gpu), predict.MACHINE[gpu]['memory_gb'] * 1e9
            total = sum(seconds for _, _, seconds, _ in rows)
            part = {'matrix': 0.0, 'flash': 0.0, 'gaps': 0.0, 'other': 0.0}
            for name, _, seconds, _ in rows:
                start = name.replace('the head', 'matrix').split(' ')[0].split('_')[0].rstrip(':')
                part[start if start in part else 'other'] += seconds
            mfu = kernels.flops_per_token(m) * kernels.rows(m) / total / (predict.MACHINE[gpu]['peak_tflops'] * 1e12)
            row('%s, %d x %d tokens' % (m.name, m.B, m.T), gpu, '%.1f' % (1e3 * total), '%.1f %%' % (100 * mfu),
                '%.3g' % (kernels.rows(m) / total / 1e3), *('%.1f' % (1e3 * part[p]) for p in ('matrix', 'flash', 'other', 'gaps')),
                str(sum(kernels.launches(m, memory))))
        gaps.append((m, sorted(rows, key=lambda r: r[3] - r[2])[:5]))
    print()
    head('the five largest gaps to the floor, H200', 'of the step', 'launches', 'ms', 'floor, ms', 'gap, ms')
    for m, largest in gaps:
        for name, launches, seconds, floor in largest:
            row(name, m.name, str(launches or '-'), *('%.2f' % (1e3 * x) for x in (seconds, floor, seconds - floor)))


def main():
    mode, folder, cuobjdump, archs = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
    logs = read_logs(folder)
    complaints, paths, roles = check_blocks(logs), {}, {}
    if cuobjdump != '-':
        for arch in archs:
            paths[arch], roles[arch] = read_code(folder, cuobjdump, arch, complaints)
    if mode != 'check' and paths and not complaints:
        rows = [k for k in kernels.KERNELS if mode == 'tables' or k.flops]
        rows = [k for k in rows if (k.file, k.kernel, 'sm_90a') in logs]
        kernel_tables(paths, logs, archs, rows)
        role_table(roles['sm_90a'], rows)
    if mode == 'tables' and paths and not complaints:
        print()
        step_tables(paths, logs)
    for complaint in complaints:
        print('sass_report: ' + complaint)
    sys.exit(1 if complaints else 0)


main()
