/* keys.c -- the keys of a machine file, in the order in which `./train bench machine` writes them;
 * see keys.h and hardware.h, where each field is explained. */
#include "configs/machine_file/keys.h"

#include "model/core/check.h"

#include <string.h>

#define AT(field) offsetof(Hardware, field)

const MachineKey machine_key[MACHINE_KEYS] = {
    {"name", KEY_TEXT, AT(name), 1, 63, "a name of at most 63 bytes", "\"my machine\""},
    {"device", KEY_DEVICE, AT(cuda), 0, 0, "\"cuda\" or \"cpu\"", "\"cuda\""},
    {"gpu", KEY_TEXT, AT(gpu), 0, 63, "the name that nvidia-smi shows, or \"\" for a CPU",
     "\"NVIDIA H200\""},
    {"capability", KEY_INT, AT(device.capability), 0, 999,
     "the compute capability times ten, or 0 for a CPU", "90"},
    {"device_bytes", KEY_INT64, AT(device.bytes), 0, 1e15, "bytes of device memory, or 0 for a CPU",
     "84933003674"},
    {"workspace_bytes", KEY_INT64, AT(workspace_bytes), 0, 1e12, "bytes", "134217728"},
    {"host_bytes", KEY_INT64, AT(host_bytes), 1e8, 1e15, "bytes of a node's memory",
     "2199023255552"},
    {"peak_f64", KEY_NUMBER, AT(peak[F64]), 1e7, 1e17, "FLOP/s", "67e12"},
    {"peak_f32", KEY_NUMBER, AT(peak[F32]), 1e7, 1e17, "FLOP/s", "67e12"},
    {"peak_tf32", KEY_NUMBER, AT(peak_tf32), 1e7, 1e17, "FLOP/s", "495e12"},
    {"peak_bf16", KEY_NUMBER, AT(peak[BF16]), 1e7, 1e17, "FLOP/s", "989e12"},
    {"peak_f16", KEY_NUMBER, AT(peak[F16]), 1e7, 1e17, "FLOP/s", "989e12"},
    {"memory_bandwidth", KEY_NUMBER, AT(memory_bandwidth), 1e8, 1e15, "bytes per second",
     "3.35e12"},
    {"memory_efficiency", KEY_NUMBER, AT(memory_efficiency), 0.2, 1, "a share of 1", "0.8"},
    {"launch", KEY_NUMBER, AT(launch), 0, 2e-5, "seconds", "2.5e-6"},
    {"product_most", KEY_NUMBER, AT(product.most), 0.3, 0.95, "a share of 1", "0.84"},
    {"product_edge", KEY_NUMBER, AT(product.edge), 0, 65536, "a number of rows", "150"},
    {"product_sustained", KEY_NUMBER, AT(product.sustained), 0.6, 1, "a share of 1", "0.86"},
    {"attention_forward_share", KEY_NUMBER, AT(attention_forward.share), 0.01, 1, "a share of 1",
     "0.35"},
    {"attention_forward_length", KEY_NUMBER, AT(attention_forward.length), 0, 65536,
     "a number of tokens", "350"},
    {"attention_backward_share", KEY_NUMBER, AT(attention_backward.share), 0.01, 1, "a share of 1",
     "0.34"},
    {"attention_backward_length", KEY_NUMBER, AT(attention_backward.length), 0, 65536,
     "a number of tokens", "650"},
    {"collective", KEY_NUMBER, AT(collective), 0, 0.1, "seconds", "28e-6"},
    {"inside_latency", KEY_NUMBER, AT(inside.latency), 0, 0.1, "seconds", "3.4e-6"},
    {"inside_bandwidth", KEY_NUMBER, AT(inside.bandwidth), 1e6, 1e14, "bytes per second", "365e9"},
    {"between_latency", KEY_NUMBER, AT(between.latency), 0, 1, "seconds", "14e-6"},
    {"between_bandwidth", KEY_NUMBER, AT(between.bandwidth), 1e6, 1e13, "bytes per second", "45e9"},
    {"devices_per_node", KEY_INT, AT(devices_per_node), 1, 65536, "a number of devices", "8"},
    {"nics_per_node", KEY_INT, AT(nics_per_node), 1, 1024, "a number of network interfaces", "8"},
    {"disk_bandwidth", KEY_NUMBER, AT(disk_bandwidth), 1e6, 1e14, "bytes per second", "10e9"},
    {"node_disk_bandwidth", KEY_NUMBER, AT(node_disk_bandwidth), 1e6, 1e14, "bytes per second",
     "1.2e9"},
    {"host_bandwidth", KEY_NUMBER, AT(host_bandwidth), 0, 1e13,
     "bytes per second each way (of a CPU 0), which `./train bench machine` measures", "51.2e9"},
};

/* Keys that have narrower limits on GPUs than in machine_key. The first three of them, and
 * product_sustained, may be fitted to published step times. (The limits of product_sustained are
 * the same for all devices: at its power limit, a device keeps at least six tenths of its clock.)
 *
 * product_edge: at most 256 in each dimension, one tile of a matrix product; on a CPU it is a few
 * rows per thread. memory_efficiency: a one-pass kernel reaches nine tenths of the memory
 * bandwidth, and a kernel that reads its rows twice half of it. launch: an empty kernel takes 1.5
 * us or more; programs that launch many small kernels for one op of this program take up to six
 * times that. host_bandwidth: every GPU has a link to its host. */
static const struct {
    const char *key;
    HardwareLimits limits;
} of_gpu[] = {{"product_edge", {0, 256}},
              {"memory_efficiency", {0.4, 0.95}},
              {"launch", {1.5e-6, 1e-5}},
              {"host_bandwidth", {1e8, 1e13}}};

int machine_key_find(const char *name)
{
    for (int i = 0; i < MACHINE_KEYS; i++)
        if (strcmp(machine_key[i].name, name) == 0) return i;
    return -1;
}

double machine_key_number(const Hardware *hardware, const MachineKey *key)
{
    const void *field = (const char *)hardware + key->at;
    if (key->type == KEY_INT) return *(const int *)field;
    return key->type == KEY_INT64 ? (double)*(const int64_t *)field : *(const double *)field;
}

HardwareLimits machine_key_limits(const MachineKey *key, bool cuda)
{
    for (size_t i = 0; cuda && i < sizeof of_gpu / sizeof *of_gpu; i++)
        if (strcmp(of_gpu[i].key, key->name) == 0) return of_gpu[i].limits;
    return (HardwareLimits){key->least, key->most};
}

static const MachineKey *number_row(const char *key)
{
    int row = machine_key_find(key);
    CHECK(row >= 0 && machine_key_is_number(&machine_key[row]), "%s is no number", key);
    return &machine_key[row];
}

HardwareLimits hardware_limits(const char *key, bool cuda)
{
    return machine_key_limits(number_row(key), cuda);
}

double hardware_number(const Hardware *hardware, const char *key)
{
    return machine_key_number(hardware, number_row(key));
}
