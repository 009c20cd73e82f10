/* wait_rules.h -- checks the graph of a step (step_graph.h) for waits that come too early. A path
 * leads through streams, events and peers, from some work to the first work of the compute stream
 * that waits for it, the path's end. The rules say which ends are the earliest that are allowed:
 *
 * - For a sum of gradients: the step's norm. From ZeRO stage 2 on, gradients are made in ZERO_SLOTS
 * buffers; then it is the next use of the buffer, ZERO_SLOTS uses of units later. It may also be
 * the next use of the buffer of a later sum, because collectives of one communicator are done in
 * order.
 *
 * - For a gather of weights: the first use of a unit that is gathered with it, or the end that is
 * allowed for a later sum.
 *
 * - For an exchange: the first action that uses one of its buffers, or a buffer of a later
 * exchange, because the messages of a group are sent in order.
 *
 * - For the sum of an input gradient over tensor-parallel ranks: the place where it is awaited.
 *
 * Two more rules are about beginnings: a gather for an action must not begin after an exchange for
 * which this action waits, and the sum of a gradient must not begin after an exchange for which a
 * later action waits. */
#ifndef TESTS_SUPPORT_TRAINER_WAIT_RULES_H
#define TESTS_SUPPORT_TRAINER_WAIT_RULES_H

#include "tests/support/trainer/step_graph.h"

typedef enum {
    RULE_SUMS,
    RULE_GATHERS,
    RULE_EXCHANGES,
    RULE_TP_SUMS,
    RULE_AHEAD,
    RULE_LATE_SUM,
    RULES
} WaitRule;
extern const char *const wait_rule_name[RULES];

typedef struct {
    int broken[RULES], held[RULES]; /* number of violations, and of cases where the rule held */
    char example[RULES][256];
} StepFindings;

/* Checks one rank and adds how often each rule was kept and broken. */
void wait_rules_look(StepFindings *findings, const StepGraph *graph, int rank);

#endif
