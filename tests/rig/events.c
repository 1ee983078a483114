/* What happens on a GPU: XIDs, through event sets, and processes.
 *
 * Invariant: an XID is delivered once, whoever waits, and a wait ends after its time.
 */
#include "call.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUEUE = 256 };
struct rig_event_set {
    unsigned long long types[MAX_GPUS];
    nvmlEventData_t queue[QUEUE];
    unsigned int first, count;
};
static pthread_mutex_t event_lock = PTHREAD_MUTEX_INITIALIZER;
static char told[MAX_GPUS][TEXT]; /* the XID line that was last delivered in this process */

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER(nvmlEventSetCreate);
    NEEDS(set);
    *set = calloc(1, sizeof **set);
    if (!*set)
        abort();
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types, nvmlEventSet_t set)
{
    ENTER_DEVICE(nvmlDeviceRegisterEvents);
    NEEDS(set);
    if (types & ~(unsigned long long)EVENT_SUPPORTED)
        return NVML_ERROR_NOT_SUPPORTED;
    pthread_mutex_lock(&event_lock);
    set->types[call.number] |= types;
    pthread_mutex_unlock(&event_lock);
    return NVML_SUCCESS;
}

/* `xid=79` or `xid=79,48`; anything after the digits only makes the line a new one: `79 again`. */
static void queue_xids(nvmlEventSet_t set, unsigned int number, const char *line)
{
    for (const char *at = line; at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        nvmlEventData_t event = {&devices[number][0], EVENT_XID, strtoull(at, NULL, 0),
                                 (unsigned int)NO_INSTANCE, (unsigned int)NO_INSTANCE};
        if (set->count < QUEUE)
            set->queue[(set->first + set->count++) % QUEUE] = event;
    }
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    const struct control *now = control_now();
    pthread_mutex_lock(&event_lock);
    for (unsigned int i = 0; i < now->gpus; i++) {
        if (!(set->types[i] & EVENT_XID) || strcmp(told[i], now->gpu[i].xid) == 0)
            continue;
        snprintf(told[i], TEXT, "%s", now->gpu[i].xid);
        if (*told[i])
            queue_xids(set, i, told[i]);
    }
    bool found = set->count > 0;
    if (found) {
        *data = set->queue[set->first];
        set->first = (set->first + 1) % QUEUE;
        set->count--;
    }
    pthread_mutex_unlock(&event_lock);
    return found;
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, unsigned int timeout_ms)
{
    ENTER(nvmlEventSetWait_v2);
    NEEDS(set && data);
    double until_s = steady_s() + timeout_ms * 1e-3, left_s;
    while (!next_event(set, data)) {
        if ((left_s = until_s - steady_s()) <= 0)
            return NVML_ERROR_TIMEOUT;
        sleep_s(left_s < 0.005 ? left_s : 0.005);
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER(nvmlEventSetFree);
    NEEDS(set);
    free(set);
    return NVML_SUCCESS;
}

/* ------------------------------------------------------------------------------- processes */

static unsigned long long process_memory(const struct call *call)
{
    if (call->gpu->process_mem_set)
        return call->gpu->process_mem;
    return memory_of(call).used / (call->gpu->pid_count ? call->gpu->pid_count : 1);
}

/* Asked with no room, the size; with too little, that it is too little. */
static nvmlReturn_t list_processes(const struct call *call, unsigned int *count, void *infos, bool old)
{
    NEEDS(count);
    unsigned int found = call->gpu->pid_count, room = *count;
    *count = found;
    if (found > room || (found && !infos))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++) {
        if (old)
            ((nvmlProcessInfo_v1_t *)infos)[i] =
                (nvmlProcessInfo_v1_t){call->gpu->pid_values[i], process_memory(call)};
        else
            ((nvmlProcessInfo_t *)infos)[i] =
                (nvmlProcessInfo_t){call->gpu->pid_values[i], process_memory(call),
                                    (unsigned int)NO_INSTANCE, (unsigned int)NO_INSTANCE};
    }
    return NVML_SUCCESS;
}

#define PROCESSES(fn, old)                                                    \
    nvmlReturn_t fn(nvmlDevice_t device, unsigned int *count, void *infos)    \
    {                                                                         \
        ENTER_DEVICE(fn);                                                     \
        return list_processes(&call, count, infos, old);                      \
    }
#define NO_PROCESSES(fn)                                                      \
    nvmlReturn_t fn(nvmlDevice_t device, unsigned int *count, void *infos)    \
    {                                                                         \
        ENTER_DEVICE(fn);                                                     \
        (void)infos;                                                          \
        NEEDS(count);                                                         \
        *count = 0;                                                           \
        return NVML_SUCCESS;                                                  \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, true)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, false)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, false)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2)
NO_PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3)
NO_PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3)

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device, nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long seen_us)
{
    ENTER_DEVICE(nvmlDeviceGetProcessUtilization);
    NEEDS(count);
    unsigned int found = call.gpu->pid_count, room = *count;
    unsigned long long at_us = now_us();
    *count = found;
    if (!found || seen_us >= at_us)
        return NVML_ERROR_NOT_FOUND;
    if (!samples || room < found)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++)
        samples[i] = (nvmlProcessUtilizationSample_t){call.gpu->pid_values[i], at_us,
                                                      (unsigned int)call.gpu->util / found,
                                                      (unsigned int)call.gpu->mem_util / found, 0, 0};
    return NVML_SUCCESS;
}
