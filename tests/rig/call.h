/* One call of a function of NVML: what it is about, and what each does first.
 *
 * Not here: the answers. Invariant: a function begins with ENTER or ENTER_DEVICE, so that it can be
 * missing, fail, hang, be counted and cost time like every other.
 */
#ifndef FLEETRIG_CALL_H
#define FLEETRIG_CALL_H

#include <stddef.h>

#include "control.h"

struct rig_device {
    unsigned int gpu;
    int slice; /* -1: the GPU itself */
};
extern struct rig_device devices[MAX_GPUS][1 + MAX_SLICES];

struct call {
    const struct control *now;
    const struct gpu *gpu;     /* NULL where the function names no GPU */
    const struct slice *slice; /* NULL for the GPU itself */
    unsigned int number;
};

/* What every function does first. A device is given where the function names one. */
nvmlReturn_t enter(struct call *call, enum function fn, nvmlDevice_t device);

bool is_device(nvmlDevice_t device);
void sleep_s(double seconds);

/* Sessions begun and not ended; every function but a few needs one. */
int sessions(int change);

/* The time as drivers stamp it: microseconds since 1970. */
unsigned long long now_us(void);

/* Text into a caller's buffer. */
nvmlReturn_t say(const char *text, char *buffer, unsigned int length);

struct memory {
    unsigned long long total, used, reserved, free;
};
struct memory memory_of(const struct call *call);

#define ENTER(fn)                                            \
    struct call call;                                        \
    nvmlReturn_t entered = enter(&call, FN_##fn, NULL);      \
    if (entered != NVML_SUCCESS)                             \
    return entered
#define ENTER_DEVICE(fn)                                     \
    struct call call;                                        \
    if (!is_device(device))                                  \
        return NVML_ERROR_INVALID_ARGUMENT;                  \
    nvmlReturn_t entered = enter(&call, FN_##fn, device);    \
    if (entered != NVML_SUCCESS)                             \
    return entered
#define NEEDS(condition)                                     \
    if (!(condition))                                        \
    return NVML_ERROR_INVALID_ARGUMENT

#endif
