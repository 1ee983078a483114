/* What the rig shall answer now: the control file, read into one snapshot.
 *
 * Not here: the functions of NVML, which are in libnvidia-ml.c. Invariant: a snapshot never changes
 * and is never freed, because a call that hangs may still hold it; a change makes the next one.
 */
#ifndef FLEETRIG_CONTROL_H
#define FLEETRIG_CONTROL_H

#include <stdbool.h>

#include "nvml.h"

enum { MAX_GPUS = 64, MAX_SLICES = 8, MAX_SAMPLES = 120, MAX_PIDS = 64, MAX_FIELDS = 8, TEXT = 96 };

/* Every function: its symbol, the word that control lines know it by, and where it answers.
 * ANY: GPUs and slices. WHOLE: GPUs, not slices. UNCUT: GPUs that are not cut in slices. */
#define FUNCTIONS(F)                                             \
    F(nvmlInit_v2, init, ANY)                                    \
    F(nvmlInitWithFlags, init, ANY)                              \
    F(nvmlShutdown, shutdown, ANY)                               \
    F(nvmlSystemGetDriverVersion, driver, ANY)                   \
    F(nvmlSystemGetNVMLVersion, nvml, ANY)                       \
    F(nvmlSystemGetCudaDriverVersion, cuda, ANY)                 \
    F(nvmlSystemGetCudaDriverVersion_v2, cuda, ANY)              \
    F(nvmlSystemGetProcessName, processes, ANY)                  \
    F(nvmlDeviceGetCount_v2, count, ANY)                         \
    F(nvmlDeviceGetHandleByIndex_v2, handle, ANY)                \
    F(nvmlDeviceGetHandleByUUID, handle, ANY)                    \
    F(nvmlDeviceGetHandleByPciBusId_v2, handle, ANY)             \
    F(nvmlDeviceGetName, name, ANY)                              \
    F(nvmlDeviceGetUUID, uuid, ANY)                              \
    F(nvmlDeviceGetSerial, name, WHOLE)                          \
    F(nvmlDeviceGetIndex, index, ANY)                            \
    F(nvmlDeviceGetMinorNumber, index, WHOLE)                    \
    F(nvmlDeviceGetPciInfo_v3, pci, WHOLE)                       \
    F(nvmlDeviceGetUtilizationRates, util, UNCUT)                \
    F(nvmlDeviceGetEncoderUtilization, codec, UNCUT)             \
    F(nvmlDeviceGetDecoderUtilization, codec, UNCUT)             \
    F(nvmlDeviceGetSamples, samples, UNCUT)                      \
    F(nvmlDeviceGetMemoryInfo, memory, ANY)                      \
    F(nvmlDeviceGetMemoryInfo_v2, memory, ANY)                   \
    F(nvmlDeviceGetBAR1MemoryInfo, bar1, ANY)                    \
    F(nvmlDeviceGetPowerUsage, power, WHOLE)                     \
    F(nvmlDeviceGetPowerManagementLimit, limit, WHOLE)           \
    F(nvmlDeviceGetEnforcedPowerLimit, limit, WHOLE)             \
    F(nvmlDeviceGetTotalEnergyConsumption, energy, WHOLE)        \
    F(nvmlDeviceGetTemperature, temp, WHOLE)                     \
    F(nvmlDeviceGetTemperatureV, temp, WHOLE)                    \
    F(nvmlDeviceGetFanSpeed, fan, WHOLE)                         \
    F(nvmlDeviceGetFanSpeed_v2, fan, WHOLE)                      \
    F(nvmlDeviceGetClockInfo, clock, WHOLE)                      \
    F(nvmlDeviceGetMaxClockInfo, clock, WHOLE)                   \
    F(nvmlDeviceGetCurrentClocksThrottleReasons, throttle, WHOLE) \
    F(nvmlDeviceGetCurrentClocksEventReasons, throttle, WHOLE)   \
    F(nvmlDeviceGetEccMode, ecc, WHOLE)                          \
    F(nvmlDeviceGetTotalEccErrors, ecc, WHOLE)                   \
    F(nvmlDeviceGetMemoryErrorCounter, ecc, WHOLE)               \
    F(nvmlDeviceGetFieldValues, field, WHOLE)                    \
    F(nvmlDeviceGetMigMode, mig, WHOLE)                          \
    F(nvmlDeviceGetMaxMigDeviceCount, mig, WHOLE)                \
    F(nvmlDeviceGetMigDeviceHandleByIndex, mig, WHOLE)           \
    F(nvmlDeviceIsMigDeviceHandle, mig, ANY)                     \
    F(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, mig, ANY)    \
    F(nvmlDeviceGetGpuInstanceId, mig, ANY)                      \
    F(nvmlDeviceGetComputeInstanceId, mig, ANY)                  \
    F(nvmlDeviceGetAttributes_v2, mig, ANY)                      \
    F(nvmlDeviceGetSupportedEventTypes, events, WHOLE)           \
    F(nvmlDeviceRegisterEvents, events, WHOLE)                   \
    F(nvmlEventSetCreate, event_set, ANY)                        \
    F(nvmlEventSetWait_v2, event_set, ANY)                       \
    F(nvmlEventSetFree, event_set, ANY)                          \
    F(nvmlDeviceGetComputeRunningProcesses, processes, ANY)      \
    F(nvmlDeviceGetComputeRunningProcesses_v2, processes, ANY)   \
    F(nvmlDeviceGetComputeRunningProcesses_v3, processes, ANY)   \
    F(nvmlDeviceGetGraphicsRunningProcesses, processes, ANY)     \
    F(nvmlDeviceGetGraphicsRunningProcesses_v2, processes, ANY)  \
    F(nvmlDeviceGetGraphicsRunningProcesses_v3, processes, ANY)  \
    F(nvmlDeviceGetMPSComputeRunningProcesses_v3, processes, ANY) \
    F(nvmlDeviceGetProcessUtilization, processes, ANY)           \
    F(nvmlDeviceGetPerformanceState, mode, WHOLE)                \
    F(nvmlDeviceGetPersistenceMode, mode, WHOLE)                 \
    F(nvmlDeviceGetComputeMode, mode, WHOLE)                     \
    F(nvmlDeviceGetDisplayMode, mode, WHOLE)                     \
    F(nvmlDeviceGetDisplayActive, mode, WHOLE)                   \
    F(nvmlDeviceGetCudaComputeCapability, mode, ANY)             \
    F(nvmlDeviceGetDriverModel, mode, WHOLE)                     \
    F(nvmlDeviceGetDriverModel_v2, mode, WHOLE)                  \
    F(nvmlDeviceGetPcieThroughput, pcie, WHOLE)

enum function {
#define F(symbol, word, where) FN_##symbol,
    FUNCTIONS(F)
#undef F
    FUNCTION_COUNT
};

/* For each function: the code it answers instead (0: none), and for how long it hangs first. */
struct trouble {
    int code[FUNCTION_COUNT];
    float hang_s[FUNCTION_COUNT];
};

struct slice {
    char uuid[TEXT], name[TEXT];
    unsigned long long mem_total, mem_used, mem_reserved; /* bytes */
    struct trouble trouble;
};

struct field {
    unsigned int id;
    int code;
    bool has_value;
    unsigned long long value;
};

struct gpu {
    char uuid[TEXT], name[TEXT], pci[TEXT], serial[TEXT], xid[TEXT], samples[1024], pids[256];
    unsigned long long mem_total, mem_used, mem_reserved, process_mem; /* bytes */
    unsigned long long util, mem_util, encoder_util, decoder_util;     /* percent */
    unsigned long long power_mw, power_average_mw, power_instant_mw, power_limit_mw, energy_mj;
    unsigned long long energy_grows, temp, fan, sm_clock, mem_clock, max_clock, throttle, ecc;
    unsigned long long processes, mig, absent, minor, display;
    double samples_hz;
    bool samples_set, samples_hz_set, process_mem_set;
    unsigned long long sample_values[MAX_SAMPLES];
    unsigned int sample_count, pid_count, field_count;
    unsigned int pid_values[MAX_PIDS];
    struct field fields[MAX_FIELDS];
    struct trouble trouble;
    struct slice slices[MAX_SLICES];
};

struct control {
    char driver[TEXT], nvml[TEXT], missing_text[4096], trace[512];
    unsigned long long cuda, count, gpus, delay_us;
    bool count_set, gpus_set;
    bool missing[FUNCTION_COUNT];
    struct trouble trouble; /* of the functions that name no GPU */
    struct gpu *gpu;        /* so many as exist */
};

/* The snapshot that holds now; one stat, and a new reading where the file changed. */
const struct control *control_now(void);

/* The energy counter of one GPU in mJ: the control's value, and what its power added since. */
unsigned long long energy_now(const struct control *now, unsigned int gpu);

/* Seconds of the system's clock that never steps. */
double steady_s(void);

extern const char *const function_names[FUNCTION_COUNT];

#endif
