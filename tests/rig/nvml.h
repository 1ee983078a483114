/* NVML's types and return codes, as far as the rig answers: the layouts of the binding's structures.
 *
 * Not here: what is answered. Invariant: each layout equals that of nvidia-ml-py on a 64-bit Linux
 * (x86_64, aarch64); tests/gpu/test_rig.py reads every one of them through the binding.
 * Source: NVML API reference; nvidia-ml-py 13.615.71, pynvml.py.
 */
#ifndef FLEETRIG_NVML_H
#define FLEETRIG_NVML_H

#include <stdint.h>

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_WIDEST = 0x7fffffff /* any code that a control file names */
} nvmlReturn_t;

typedef struct rig_device *nvmlDevice_t;
typedef struct rig_event_set *nvmlEventSet_t;

enum {
    MEMORY_V2 = 0x02000028,
    TEMPERATURE_V1 = 0x0100000C,
    VALUE_UNSIGNED_INT = 1,
    VALUE_UNSIGNED_LONG_LONG = 3,
    SAMPLES_POWER = 0,
    SAMPLES_GPU_UTIL = 1,
    SAMPLES_MEMORY_UTIL = 2,
    SAMPLES_SM_CLOCK = 5,
    FIELD_ENERGY = 83,
    FIELD_POWER_AVERAGE = 185,
    FIELD_POWER_INSTANT = 186,
    EVENT_XID = 0x8,
    EVENT_SUPPORTED = 0x1F, /* single and double bit ECC, P-state, XID, clock */
    NO_INSTANCE = -1        /* 0xFFFFFFFF: not an instance of MIG */
};

typedef union {
    double as_double;
    unsigned int as_uint;
    unsigned long as_ulong;
    unsigned long long as_ulonglong;
    long long as_longlong;
} nvmlValue_t;

typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;
typedef struct { unsigned long long total, free, used; } nvmlBAR1Memory_t;
typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;
typedef struct { unsigned long long timeStamp; nvmlValue_t sampleValue; } nvmlSample_t;
typedef struct {
    unsigned int fieldId, scopeId;
    long long timestamp, latencyUsec;
    unsigned int valueType, nvmlReturn;
    nvmlValue_t value;
} nvmlFieldValue_t;
typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;
typedef struct { unsigned int pid; unsigned long long usedGpuMemory; } nvmlProcessInfo_v1_t;
typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;
typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;
typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount;
    unsigned int sharedEncoderCount, sharedJpegCount, sharedOfaCount;
    unsigned int gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;
typedef struct { unsigned int version, sensorType; int temperature; } nvmlTemperature_t;

_Static_assert(sizeof(void *) == 8 && sizeof(long) == 8, "the layouts are those of 64-bit Linux");
_Static_assert(sizeof(nvmlMemory_v2_t) == (MEMORY_V2 & 0xffffff), "the version names the size");
_Static_assert(sizeof(nvmlTemperature_t) == (TEMPERATURE_V1 & 0xffffff), "so does this one");
_Static_assert(sizeof(nvmlPciInfo_t) == 68, "");
_Static_assert(sizeof(nvmlFieldValue_t) == 40, "");
_Static_assert(sizeof(nvmlSample_t) == 16, "");
_Static_assert(sizeof(nvmlEventData_t) == 32, "");
_Static_assert(sizeof(nvmlProcessInfo_t) == 24, "");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "");
_Static_assert(sizeof(nvmlProcessUtilizationSample_t) == 32, "");

#endif
