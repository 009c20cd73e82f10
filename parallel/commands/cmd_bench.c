/* cmd_bench.c -- `./train bench`: the table of its subcommands. */
#include "parallel/commands/cmd_bench.h"
#include "parallel/commands/commands.h"

static const ArgCommand *const commands[] = {&cmd_bench_step,     &cmd_bench_ops,
                                             &cmd_bench_gemm,     &cmd_bench_comm,
                                             &cmd_bench_parallel, &cmd_bench_machine};

const ArgCommand cmd_bench = {
    .name = "bench",
    .call = "./train bench",
    .summary = "measure products, ops, calls between ranks and whole training steps",
    .commands = commands,
    .n_commands = ARG_ROWS(commands),
};
