/* What every function of NVML does first: looks at the control, is missing, hangs, fails.
 *
 * Not here: the answers. Invariant: no lock is held while a call hangs, so one that hangs blocks no
 * other thread, and it ends when the control names no hang any more.
 */
#include "call.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct rig_device devices[MAX_GPUS][1 + MAX_SLICES];

enum place { ANY, WHOLE, UNCUT };
static const enum place places[FUNCTION_COUNT] = {
#define F(symbol, word, where) where,
    FUNCTIONS(F)
#undef F
};

int sessions(int change)
{
    static atomic_int begun;
    return atomic_fetch_add(&begun, change) + change;
}

unsigned long long now_us(void)
{
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    return (unsigned long long)at.tv_sec * 1000000ull + (unsigned long long)at.tv_nsec / 1000;
}

void sleep_s(double seconds)
{
    struct timespec left = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        continue;
}

/* One line a call, written when it begins: `nvmlDeviceGetName gpu.0`. */
static void trace(const struct control *now, enum function fn, nvmlDevice_t device)
{
    char text[160];
    int size = snprintf(text, sizeof text, "%s", function_names[fn]);
    if (device)
        size += snprintf(text + size, sizeof text - (size_t)size, " gpu.%u", device->gpu);
    if (device && device->slice >= 0)
        size += snprintf(text + size, sizeof text - (size_t)size, ".mig.%d", device->slice);
    text[size++] = '\n';
    int fd = open(now->trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0)
        return;
    if (write(fd, text, (size_t)size) < 0)
        perror("fleetrig: trace");
    close(fd);
}

bool is_device(nvmlDevice_t device)
{
    const char *first = (const char *)&devices[0][0], *at = (const char *)device;
    return at >= first && at < first + sizeof devices &&
           (size_t)(at - first) % sizeof(struct rig_device) == 0;
}

static const struct trouble *aim(struct call *call, nvmlDevice_t device)
{
    call->now = control_now();
    call->gpu = NULL;
    call->slice = NULL;
    if (!device || device->gpu >= call->now->gpus)
        return &call->now->trouble;
    call->number = device->gpu;
    call->gpu = &call->now->gpu[device->gpu];
    if (device->slice >= 0)
        call->slice = &call->gpu->slices[device->slice];
    return call->slice ? &call->slice->trouble : &call->gpu->trouble;
}

/* Waits as long as the control names a hang for this call, and no longer. */
static const struct trouble *hang(struct call *call, const struct trouble *trouble, enum function fn,
                                  nvmlDevice_t device)
{
    if (trouble->hang_s[fn] <= 0)
        return trouble;
    double since_s = steady_s(), left_s;
    while ((left_s = (double)trouble->hang_s[fn] - (steady_s() - since_s)) > 0) {
        sleep_s(left_s < 0.01 ? left_s : 0.01);
        trouble = aim(call, device);
    }
    return trouble;
}

/* Of this thread: on a busy machine it does not get all the time that passes. */
static double processor_s(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (double)spent.tv_sec + (double)spent.tv_nsec * 1e-9;
}

static void spin(unsigned long long microseconds)
{
    if (!microseconds)
        return;
    double until_s = processor_s() + (double)microseconds * 1e-6;
    while (processor_s() < until_s)
        continue;
}

nvmlReturn_t enter(struct call *call, enum function fn, nvmlDevice_t device)
{
    const struct trouble *trouble = aim(call, device);
    if (*call->now->trace)
        trace(call->now, fn, device);
    spin(call->now->delay_us);
    if (call->now->missing[fn])
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    bool needs_init = fn != FN_nvmlInit_v2 && fn != FN_nvmlInitWithFlags &&
                      fn != FN_nvmlSystemGetNVMLVersion && fn != FN_nvmlSystemGetCudaDriverVersion &&
                      fn != FN_nvmlSystemGetCudaDriverVersion_v2;
    if (needs_init && sessions(0) == 0)
        return NVML_ERROR_UNINITIALIZED;
    trouble = hang(call, trouble, fn, device);
    if (trouble->code[fn])
        return (nvmlReturn_t)trouble->code[fn];
    if (!device)
        return NVML_SUCCESS;
    if (!call->gpu || call->gpu->absent)
        return NVML_ERROR_GPU_IS_LOST;
    if (call->slice && (unsigned int)device->slice >= call->gpu->mig)
        return NVML_ERROR_NOT_FOUND;
    if (places[fn] != ANY && (call->slice || (places[fn] == UNCUT && call->gpu->mig)))
        return NVML_ERROR_NOT_SUPPORTED;
    return NVML_SUCCESS;
}

nvmlReturn_t say(const char *text, char *buffer, unsigned int length)
{
    NEEDS(buffer);
    if (strlen(text) >= length)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    strcpy(buffer, text);
    return NVML_SUCCESS;
}

struct memory memory_of(const struct call *call)
{
    const struct gpu *gpu = call->gpu;
    struct memory memory = {gpu->mem_total, gpu->mem_used, gpu->mem_reserved, 0};
    if (call->slice)
        memory = (struct memory){call->slice->mem_total, call->slice->mem_used, call->slice->mem_reserved, 0};
    if (memory.total > memory.used + memory.reserved)
        memory.free = memory.total - memory.used - memory.reserved;
    return memory;
}
