/* wait_rules.h -- what may wait for what in a step: rules that the graph of a step (step_graph.h)
 * is held to. Of a path through streams, events and peers from
 *
 * - a sum of gradients to the compute stream none ends before the step's norm; from ZeRO stage 2
 *   on, where gradients are made in buffers, ZERO_SLOTS of them, none before its buffer is filled
 *   again, so many uses of units later, or that of a later sum: collectives of one communicator
 *   are done in their order;
 * - a gather of weights none ends before the first use of a unit that is gathered with it, or
 *   before that of a later sum;
 * - an exchange none ends before the first action that uses a buffer of it, or of an exchange
 *   after it: a group's messages are moved in their order;
 * - an input gradient's sum over tensor-parallel ranks none ends before it is awaited;
 * - and a gather of what an action uses first does not begin after an exchange that this action
 *   waits for, nor the sum of a gradient after one that an action after its own waits for. */
#ifndef TESTS_SUPPORT_TRAINER_WAIT_RULES_H
#define TESTS_SUPPORT_TRAINER_WAIT_RULES_H

#include "tests/support/trainer/step_graph.h"

typedef enum {
    RULE_SUMS,
    RULE_GATHERS,
    RULE_EXCHANGES,
    RULE_TP_SUMS,
    RULE_AHEAD,
    RULE_BEHIND,
    RULES
} WaitRule;
extern const char *const wait_rule_name[RULES];

typedef struct {
    int broken[RULES], held[RULES]; /* how often */
    char example[RULES][256];
} StepFindings;

/* Adds what there is to find on a rank: how often each rule is held and broken. */
void wait_rules_look(StepFindings *findings, const StepGraph *graph, int rank);

#endif
