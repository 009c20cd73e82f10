/* cmd_bench.h -- the modes of `./train bench`, and how they measure. */
#ifndef MODEL_CMD_BENCH_H
#define MODEL_CMD_BENCH_H

/* argv[0] is the mode's name; the result is the exit code. */
int cmd_bench_ops(int argc, char **argv);
int cmd_bench_gemm(int argc, char **argv);

/* Monotonic seconds; median of x[0..n), which it sorts. */
double bench_now(void);
double bench_median(double *x, int n);

#endif
