/* fuzz_node_list.h -- the function of the fuzz target fuzz_node_list.c, for tests that pass mutated
 * inputs to it. */
#ifndef TESTS_FUZZ_FUZZ_NODE_LIST_H
#define TESTS_FUZZ_FUZZ_NODE_LIST_H

#include <stddef.h>
#include <stdint.h>

/* Reads data[0..size) as a list of machines, and a second line as the tasks of each. Fails a CHECK
 * if what is accepted breaks the bounds. Returns 0. */
int fuzz_node_list(const uint8_t *data, size_t size);

#endif
