/* rules.cc -- no rules yet. */
#include "tests/emu/nccl/rules.h"

ncclResult_t rules_enter(const char *, ncclComm *)
{
    return ncclSuccess;
}

ncclResult_t rules_leave(const char *, ncclComm *, ncclResult_t result)
{
    return result;
}

void rules_comm_made(ncclComm *)
{
}

void rules_comm_gone(ncclComm *)
{
}

void rules_call(const Call *)
{
}

bool rules_launch(Call *const *, int)
{
    return true;
}

void rules_done(Call *const *, int)
{
}

int rules_version(int version)
{
    return version;
}
