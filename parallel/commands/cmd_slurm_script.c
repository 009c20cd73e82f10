/* cmd_slurm_script.c -- prints the job script of `./train slurm`: its #SBATCH lines, and a part
 * that is the same for all jobs. */
#include "model/core/figures.h"
#include "model/core/shell_text.h"
#include "parallel/commands/cmd_slurm.h"

#include <math.h>
#include <stdlib.h>

/* Prints a comment for the script: how the time of the stop signal was computed. */
static void print_times(const SlurmTimes *t, FILE *to)
{
    if (t->measured)
        fprintf(
            to,
            "# The run saves and stops so many seconds before the limit: a save of %.0f s and a "
            "step of %.0f s, as\n# measured before, and a minute.\n",
            ceil(t->save), ceil(t->step));
    else
        fprintf(to,
                "# The run saves and stops so many seconds before the limit: a save of %.0f s (%s, "
                "200 MB/s), a step of\n# %.0f s (a guess) and a minute. Print this script again "
                "when the run has made steps and a save.\n",
                ceil(t->save), figure_bytes(t->bytes).text, ceil(t->step));
}

static void print_options(const SlurmJob *job, FILE *to)
{
    fprintf(to, "#SBATCH --job-name=%s\n", job->name);
    fprintf(to, "#SBATCH --nodes=%lld\n", (long long)job->nodes);
    fprintf(to, "#SBATCH --ntasks-per-node=%lld\n", (long long)job->tasks);
    if (job->gpus > 0) fprintf(to, "#SBATCH --gpus-per-node=%lld\n", (long long)job->gpus);
    if (job->cpus > 0) fprintf(to, "#SBATCH --cpus-per-task=%lld\n", (long long)job->cpus);
    if (job->time != NULL) fprintf(to, "#SBATCH --time=%s\n", job->time);
    print_times(&job->times, to);
    fprintf(to, "#SBATCH --signal=USR1@%lld\n", (long long)job->signal);
    fprintf(to, "#SBATCH --requeue\n#SBATCH --open-mode=append\n");
}

static const char functions[] =
    "job=$SLURM_JOB_ID restart=${SLURM_RESTART_COUNT:-0}\n"
    "mkdir -p \"$out\" || exit 73\n"
    "\n"
    "# note TEXT: adds a line to the log of this job and to the run's jobs.txt\n"
    "note() {\n"
    "    echo \"$(date +%FT%T) job $job, restart $restart, on $SLURM_JOB_NODELIST: $*\" | tee -a "
    "\"$out/jobs.txt\"\n"
    "}\n"
    "\n"
    "# noted TEXT: prints how often this job has noted that\n"
    "noted() { grep -cE \" job $job, .*: $1\" \"$out/jobs.txt\"; }\n"
    "\n"
    "# spare MACHINES: succeeds if enough machines remain without these\n"
    "spare() {\n"
    "    local without\n"
    "    without=$(scontrol show hostnames \"$1\")\n"
    "    [ \"$(sinfo -h -N -p \"$SLURM_JOB_PARTITION\" -t idle,mixed,allocated,completing -o %N | "
    "sort -u "
    "|\n"
    "        grep -cvxF \"$without\")\" -ge \"$SLURM_JOB_NUM_NODES\" ]\n"
    "}\n"
    "\n"
    "# again WHY [MACHINES]: puts the job into the queue again, for machines other than these. "
    "SLURM then "
    "ends this script.\n"
    "again() {\n"
    "    local without=${2:-} before\n"
    "    before=$(squeue -h -j \"$job\" -o %x)\n"
    "    [ -z \"$without\" ] || without=${before:+$before,}$without\n"
    "    [ -z \"$without\" ] || spare \"$without\" || without=''\n"
    "    note \"exit code $code, $1: starts again${without:+ without $without}\"\n"
    "    trap '' TERM\n"
    "    scontrol requeue \"$job\" || { note \"the job could not be requeued\"; exit \"$code\"; }\n"
    "    [ -z \"$without\" ] || scontrol update JobId=\"$job\" ExcNodeList=\"$without\"\n"
    "    sleep 60\n"
    "    exit \"$code\"\n"
    "}\n"
    "\n"
    "# named: prints the machines of this job that the first error message of this start blames: "
    "those "
    "in \"(on HOST, HOST)\", or\n"
    "# else the one of the rank that is lost or has failed. If a rank was killed, srun's exit code "
    "is "
    "the signal's, but the message\n"
    "# is that of another rank.\n"
    "named() {\n"
    "    local said\n"
    "    said=$(tail -c \"+$((written + 1))\" \"$log\" 2>/dev/null | grep -aE "
    "'^error\\[(71|86|87)\\]' | head -n 1)\n"
    "    case $said in\n"
    "    *'(on '*) said=${said##*'(on '} said=${said%%[;)]*} ;;\n"
    "    'error[71]'*) said=$(grep -oE ' on [A-Za-z0-9_.-]+' <<<\"$said\" | head -n 1) ;;\n"
    "    *) said=$(grep -oE 'this rank on [A-Za-z0-9_.-]+' <<<\"$said\") ;;\n"
    "    esac\n"
    "    case $said in *' and others') return ;; esac\n"
    "    grep -oE '[A-Za-z0-9_-]+' <<<\"$said\" | grep -xFf <(scontrol show hostnames "
    "\"$SLURM_JOB_NODELIST\") | paste -sd, -\n"
    "}\n"
    "\n";

static const char beginning[] =
    "# SLURM tells jobs their end from version 23.02 on. The run stops in time, also without a "
    "signal.\n"
    "if [ -z \"${SLURM_JOB_END_TIME:-}\" ]; then\n"
    "    end=$(squeue -h -j \"$job\" -o %e) && end=$(date -d \"$end\" +%s 2>/dev/null) && export "
    "SLURM_JOB_END_TIME=$end\n"
    "fi\n"
    "log=$(readlink \"/proc/$$/fd/2\") written=$(stat -Lc %s \"/proc/$$/fd/2\")\n"
    "note starts\n";

static const char ending[] =
    "code=$?\n"
    "\n"
    "case $code in\n"
    "0) note \"the run is finished\" ;;\n"
    "85)\n"
    "    [ -e \"$out/STOP\" ] || again \"saved\"\n"
    "    note \"exit code 85, saved: stopped by $out/STOP\"\n"
    "    ;;\n"
    "71)\n"
    "    others=$(named) others=${others:-$SLURM_JOB_NODELIST}\n"
    "    [ \"$(noted 'exit code 71, ')\" -gt 0 ] || ! spare \"$others\" || again \"an error of a "
    "machine\" \"$others\"\n"
    "    note \"exit code 71: ended\"\n"
    "    ;;\n"
    "69 | 75 | 86 | 87 | 129 | 1[3-8][0-9] | 19[0-2])\n"
    "    failures=$(noted 'exit code [0-9]+, a failure')\n"
    "    [ \"$failures\" -ge 20 ] || again \"a failure\" \"$(named)\"\n"
    "    note \"exit code $code after 20 failures: ended\"\n"
    "    ;;\n"
    "*) note \"exit code $code: ended\" ;;\n"
    "esac\n"
    "exit \"$code\"\n";

void slurm_script_print(const SlurmJob *job, FILE *to)
{
    char *out = shell_quoted_path(job->out), *config = shell_quoted_path(job->config);
    fprintf(
        to,
        "#!/bin/bash\n"
        "# Trains %s on %s with %s each. This text was printed by\n#     %s\n"
        "# Submit it from the folder of ./train, which all machines must see. parallel/CLUSTER.md "
        "explains it.\n",
        config, figure_of(job->nodes, "machine").text,
        figure_of(job->gpus > 0 ? job->gpus : job->tasks, job->gpus > 0 ? "GPU" : "rank").text,
        job->command);
    print_options(job, to);
    fprintf(to, "set -u\nout=%s\n%s%s", out, functions, beginning);
    fprintf(to, "srun --kill-on-bad-exit=0 --wait=60%s ./train %s",
            job->cpus > 0 ? " --cpus-per-task=\"$SLURM_CPUS_PER_TASK\"" : "",
            job->goes_on ? "\"$out\"" : config);
    for (int i = 0; i < job->set.count; i++) {
        char *value = shell_quoted(job->set.item[i]);
        fprintf(to, " --set %s", value);
        free(value);
    }
    fprintf(to, "%s\n%s", job->goes_on ? "" : " --out \"$out\"", ending);
    free(config);
    free(out);
}
